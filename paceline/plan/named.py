"""The plan of a model on a device that is named: everything is computed, nothing is run."""

from __future__ import annotations

from dataclasses import replace

from paceline.common.config import require_range
from paceline.errors import ConfigError
from paceline.plan.acceptance import Acceptance
from paceline.plan.config import ModelCard
from paceline.plan.hardware import Hardware
from paceline.plan.planning import Plan, budget_of, operations, plan_of, roofline_costs, sizes_within

_SHARED = "Every device of the {0} has 1/{0} of each matrix and of the heads; what they say to each other costs nothing here."
_LEFT_OUT = (
    "Norms, positions, masks, sampling, launches and the lookup of embeddings are left out: a lower bound of the time of a"
    " forward. Drafting is, too."
)
_EXPERTS = "Experts are chosen evenly and by each token for itself: the most of them are touched that way, on average."


def plan_named(
    card: ModelCard, hardware: Hardware, acceptance: Acceptance, batch: int = 1, context: int = 512, devices: int = 1
) -> Plan:
    """Plan by the roofline.

    Args:
        batch: sequences. context: cached tokens of each. devices: that share every matrix (tensor parallelism).
    Raises:
        ConfigError: a value out of range, heads that cannot be shared, or a dtype the device has no figure for.
    """
    check_sizes(batch, context)
    require_range("plan", "tensor_parallel", devices, 1)
    for name, heads in (("heads", card.shapes.heads), ("key heads", card.shapes.kv_heads)):
        if heads % devices:
            raise ConfigError(f"plan: tensor_parallel: got {devices}; expected a divisor of the model's {heads} {name}.")
    peak, most = hardware.peak(card.dtype, devices), sizes_within(acceptance, context, card.context_length)
    name = f"{card.name} ({card.parameters / 1e9:.2f} B parameters, {card.dtype})"
    title = hardware.title if devices == 1 else f"{devices} x {hardware.title}"
    found = plan_of(roofline_costs(card, context, peak), acceptance, batch, context, most, name, title)
    notes = [f"{title}: {peak.flops / 1e12:,.4g} TFLOP/s and {peak.bandwidth / 1e12:,.4g} TB/s ({hardware.source})."]
    notes.append(_memory(card, hardware, batch, context + found.best.size, devices))
    if devices > 1:
        notes.append(_SHARED.format(devices))
    if any(one.experts > 1 for one in card.shapes.matmuls):
        notes.append(_EXPERTS)
    return replace(
        found, peak=peak, budget=budget_of(card, peak), notes=(*notes, _LEFT_OUT),
        plain=operations(card, batch, 1, context), drafted=operations(card, batch, found.best.size, context),
    )  # fmt: skip


def check_sizes(batch: int, context: int) -> None:
    """Refuse a batch or a context out of range.

    Raises:
        ConfigError: naming it.
    """
    require_range("plan", "batch", batch, 1)
    require_range("plan", "context", context, 0)


def _memory(card: ModelCard, hardware: Hardware, batch: int, tokens: int, devices: int) -> str:
    per_token, weights = card.shapes.cache_bytes, card.weight_bytes / 1e9
    cache, there = batch * tokens * per_token / 1e9, devices * hardware.memory / 1e9
    sizes = f"Weights {weights:.4g} GB, keys and values {cache:.3g} GB ({per_token:,} bytes a token)"
    return f"{sizes}, of {there:,.4g} GB." if weights + cache <= there else f"{sizes}: they do NOT fit into {there:,.4g} GB."
