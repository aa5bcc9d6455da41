"""Plan for a model on a named device with the roofline model, without running it."""

from __future__ import annotations

from dataclasses import replace

from paceline.errors import ConfigError
from paceline.plan.acceptance import Acceptance
from paceline.plan.config import ModelCard
from paceline.plan.hardware import Hardware
from paceline.plan.planning import (
    Load,
    Plan,
    budget_of,
    operations,
    plan_of,
    roofline_costs,
    sizes_within,
)
from paceline.util.config import require_range

_SHARED = (
    "Each of the {0} devices has 1/{0} of each matrix and of the heads. The cost of communication"
    " is not included."
)
_LEFT_OUT = (
    "The time of a forward pass is a lower bound: norms, positions, masks, sampling, kernel"
    " launches and embedding lookups are not included. Neither is the cost of drafting."
)
_EXPERTS = (
    "Each token is assumed to choose its experts independently and uniformly, which uses the most"
    " of them on average."
)


def plan_named(
    card: ModelCard,
    hardware: Hardware,
    acceptance: Acceptance,
    batch: int = 1,
    context: int = 512,
    devices: int = 1,
) -> Plan:
    """Plan from the roofline model.

    Args:
        card: Dimensions of the model.
        hardware: Device to plan for.
        acceptance: Tokens per forward pass for each number of draft nodes.
        batch: Number of requests; at least 1.
        context: Number of cached tokens per request; at least 0.
        devices: Number of devices over which every matrix is split (tensor parallelism).
    Raises:
        ConfigError: A value is out of range, the attention heads cannot be split equally among the
            devices, or the device has no figure for the dtype.
    """
    check_sizes(batch, context)
    _check_devices(card, devices)
    peak, max_size = (
        hardware.peak(card.dtype, devices),
        sizes_within(acceptance, context, card.context_length),
    )
    name = f"{card.name} ({card.parameters / 1e9:.2f} B parameters, {card.dtype})"
    title = hardware.title if devices == 1 else f"{devices} x {hardware.title}"
    costs, load = roofline_costs(card, context, peak), Load(batch, context, max_size)
    plan = plan_of(costs, acceptance, load, name, title)
    notes = [
        f"{title}: {peak.flops / 1e12:,.4g} TFLOP/s and {peak.bandwidth / 1e12:,.4g} TB/s"
        f" ({hardware.source})."
    ]
    notes.append(_memory(card, hardware, batch, context + plan.best.size, devices))
    if devices > 1:
        notes.append(_SHARED.format(devices))
    if any(matmul.experts > 1 for matmul in card.shapes.matmuls):
        notes.append(_EXPERTS)
    return replace(
        plan,
        peak=peak,
        budget=budget_of(card, peak),
        notes=(*notes, _LEFT_OUT),
        plain=operations(card, batch, 1, context),
        drafted=operations(card, batch, plan.best.size, context),
    )


def _check_devices(card: ModelCard, devices: int) -> None:
    require_range("plan", "tensor_parallel", devices, 1)
    for name, heads in (("heads", card.shapes.heads), ("key heads", card.shapes.kv_heads)):
        if heads % devices:
            raise ConfigError(
                f"plan: tensor_parallel: got {devices}; expected a divisor of the model's {heads}"
                f" {name}."
            )


def check_sizes(batch: int, context: int) -> None:
    """Raise if the batch or the context is out of range.

    Raises:
        ConfigError: `batch` is less than 1, or `context` less than 0.
    """
    require_range("plan", "batch", batch, 1)
    require_range("plan", "context", context, 0)


def _memory(card: ModelCard, hardware: Hardware, batch: int, tokens: int, devices: int) -> str:
    per_token, weights = card.shapes.cache_bytes, card.weight_bytes / 1e9
    cache, available = batch * tokens * per_token / 1e9, devices * hardware.memory / 1e9
    sizes = (
        f"Weights {weights:.4g} GB, keys and values {cache:.3g} GB ({per_token:,} bytes a token)"
    )
    return (
        f"{sizes}, of {available:,.4g} GB."
        if weights + cache <= available
        else f"{sizes}: they do NOT fit into {available:,.4g} GB."
    )
