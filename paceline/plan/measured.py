"""Plan for a model on this machine, using the measured cost of forward passes."""

from __future__ import annotations

import numpy as np

from paceline.draft_budget.costs import Costs
from paceline.model.cached_lm import CachedLM
from paceline.plan.acceptance import Acceptance
from paceline.plan.named import check_sizes
from paceline.plan.planning import ForwardTime, Load, Plan, plan_of, sizes_within
from paceline.util.machine import processor

_NOTES = (
    "The costs are those of one request after a short text; they are measured once and cached."
    " Rows of several requests are assumed to cost the same, and cached tokens nothing. Above the"
    " largest measured number of rows the costs are extrapolated linearly.",
    "The cost of drafting is not included.",
)


def plan_measured(
    model: CachedLM, name: str, acceptance: Acceptance, batch: int = 1, context: int = 512
) -> Plan:
    """Plan from a model's cost curve; measure the curve if necessary.

    Args:
        model: Model to plan for.
        name: Name of the model in the plan.
        acceptance: Tokens per forward pass for each number of draft nodes.
        batch: Number of requests; at least 1.
        context: Number of cached tokens per request; at least 0.
    Raises:
        ConfigError: `batch` or `context` is out of range.
    """
    check_sizes(batch, context)
    max_size = sizes_within(acceptance, context, model.context_length)
    curve = Costs(model).curve()

    def cost(sequences: int, size: int) -> ForwardTime:
        return ForwardTime(float(curve.of(np.array([sequences * size]))[0]))

    device = processor() if model.device.type == "cpu" else str(model.device)
    parameters = f"{model.model.num_parameters() / 1e9:.2f} B parameters"
    label = f"{name} ({parameters}, {str(model.model.dtype).removeprefix('torch.')})"
    measured = f"Measured: {curve.rows[-1]} rows at most."
    load = Load(batch, context, max_size)
    notes = (measured, *_NOTES)
    return plan_of(cost, acceptance, load, label, f"this machine ({device})", notes)
