"""The plan of a model on this machine, by the cost curve that the engine's budget uses."""

from __future__ import annotations

import numpy as np

from paceline.common.machine import processor
from paceline.engine.costs import Costs
from paceline.engine.model import CachedLM
from paceline.plan.acceptance import Acceptance
from paceline.plan.named import check_sizes
from paceline.plan.planning import Cost, Plan, plan_of, sizes_within

_NOTES = (
    "Forwards of one sequence with so many rows behind a short text, measured once and kept: rows of several sequences are taken"
    " to cost the same, and cached tokens nothing. Beyond the most rows that were measured the last line goes on.",
    "Drafting is left out.",
)


def plan_measured(model: CachedLM, name: str, acceptance: Acceptance, batch: int = 1, context: int = 512) -> Plan:
    """Plan by the cost curve of a model, which is measured where it is not known yet.

    Raises:
        ConfigError: a batch or a context out of range.
    """
    check_sizes(batch, context)
    most = sizes_within(acceptance, context, model.context_length)
    curve = Costs(model).curve()

    def cost(sequences: int, size: int) -> Cost:
        return Cost(float(curve.of(np.array([sequences * size]))[0]))

    where = processor() if model.device.type == "cpu" else str(model.device)
    label = f"{name} ({model.model.num_parameters() / 1e9:.2f} B parameters, {str(model.model.dtype).removeprefix('torch.')})"
    measured = f"Measured: {curve.rows[-1]} rows at most."
    return plan_of(cost, acceptance, batch, context, most, label, f"this machine ({where})", (measured, *_NOTES))
