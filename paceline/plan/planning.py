"""Find the tree size with the most tokens per forward pass relative to its cost.

The method follows Marzollo et al. 2024, figures 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from paceline.errors import ConfigError
from paceline.plan.acceptance import Acceptance
from paceline.plan.config import ModelCard
from paceline.plan.plan_settings import BATCHES, SIZES
from paceline.plan.roofline import Operation, Peak, free_budget


class ForwardTime(NamedTuple):
    """The duration of a forward pass in seconds. Unknown parts are None.

    Attributes:
        seconds: Duration of the forward pass.
        products: Time spent in matrix products.
        attention: Time spent in attention.
    """

    seconds: float
    products: float | None = None
    attention: float | None = None


# of the number of requests, and of query tokens per request
CostOf = Callable[[int, int], ForwardTime]


class Load(NamedTuple):
    """The requests of a step.

    Attributes:
        batch: Number of requests.
        context: Number of cached tokens per request.
        max_size: Maximum number of query tokens per request: the newest token and the draft nodes.
    """

    batch: int
    context: int
    max_size: int


@dataclass(frozen=True, slots=True)
class Step:
    """A forward pass with `size` tokens per request, including the newest token.

    Attributes:
        batch: Number of requests.
        size: Number of query tokens per request.
        seconds, products, attention: Times as in `ForwardTime`.
        relative: Time relative to plain decoding.
        tokens: Expected tokens per forward pass and request.
    """

    batch: int
    size: int
    seconds: float
    products: float | None
    attention: float | None
    relative: float
    tokens: float

    @property
    def speedup(self) -> float:
        """Return the expected speed-up over plain decoding, ignoring the cost of drafting."""
        return self.tokens / self.relative

    @property
    def tokens_per_second(self) -> float:
        """Return the expected number of tokens per second for the whole batch."""
        return self.batch * self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """The expected speed-up from drafting for a model on a machine.

    Attributes:
        model, hardware, acceptance: Descriptions.
        batch: Number of requests.
        context: Number of cached tokens per request.
        peak: Peak rates of the machine; None for a measured plan.
        budget: Number of query tokens, b s_q, up to which a forward pass is memory-bound. None for
            a measured plan, or if a forward pass is always memory-bound.
        steps: Forward passes at `batch`, by size.
        best: Best step at `batch`.
        batches: Best step for each batch size.
        plain: Operations in a forward pass without drafts; empty for a measured plan.
        drafted: Operations in a forward pass at the best size; empty for a measured plan.
        notes: Assumptions behind the figures.
    """

    model: str
    hardware: str
    acceptance: str
    batch: int
    context: int
    peak: Peak | None
    budget: float | None
    steps: tuple[Step, ...]
    best: Step
    batches: tuple[Step, ...]
    plain: tuple[Operation, ...] = ()
    drafted: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()


def roofline_costs(card: ModelCard, context: int, peak: Peak) -> CostOf:
    """Return the roofline cost function for `context` cached tokens."""

    def cost(batch: int, size: int) -> ForwardTime:
        products, attention = card.shapes.seconds(batch, size, context, peak)
        return ForwardTime(products + attention, products, attention)

    return cost


def steps_of(cost: CostOf, acceptance: Acceptance, batch: int, max_size: int) -> list[Step]:
    """Return the forward passes with 1 to `max_size` query tokens per request."""
    plain = cost(batch, 1).seconds
    steps = []
    for size in range(1, max_size + 1):
        forward_cost = cost(batch, size)
        steps.append(
            Step(batch, size, *forward_cost, forward_cost.seconds / plain, acceptance.of(size - 1))
        )
    return steps


def best_of(steps: list[Step]) -> Step:
    """Return the step with the most tokens per second; the smallest if several tie."""
    return max(steps, key=lambda step: step.speedup)


def sizes_within(acceptance: Acceptance, context: int, context_length: int | None) -> int:
    """Return the maximum number of query tokens per request.

    The maximum is limited by the largest measured tree and by the room left in the model's
    context.

    Raises:
        ConfigError: `context` leaves no room for new tokens in the model's context.
    """
    max_size = acceptance.most + 1
    if context_length is None:
        return max_size
    if context >= context_length:
        raise ConfigError(
            f"plan: context: got {context}; expected at most {context_length - 1}, as the model"
            f" takes {context_length} tokens. Reduce it."
        )
    return min(max_size, context_length - context)


def plan_of(
    cost: CostOf,
    acceptance: Acceptance,
    load: Load,
    model: str,
    hardware: str,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan for a load, using the cost function of a device or model."""
    batch, context, max_size = load
    steps = steps_of(cost, acceptance, batch, max_size)
    best = best_of(steps)
    shown = tuple(step for step in steps if step.size in (*SIZES, best.size))
    batches = tuple(
        best if size == batch else best_of(steps_of(cost, acceptance, size, max_size))
        for size in sorted({batch, *BATCHES})
    )
    return Plan(
        model,
        hardware,
        acceptance.source,
        batch,
        context,
        None,
        None,
        shown,
        best,
        batches,
        notes=notes,
    )


def budget_of(card: ModelCard, peak: Peak) -> float | None:
    """Return `free_budget` for the model's hidden size; None if there is no limit."""
    return free_budget(card.shapes.hidden, peak, card.shapes.width)


def operations(card: ModelCard, batch: int, size: int, context: int) -> tuple[Operation, ...]:
    """Return the operations in a forward pass (table 1 of the paper)."""
    return (*card.shapes.products(batch, size), *card.shapes.attention(batch, size, context))
