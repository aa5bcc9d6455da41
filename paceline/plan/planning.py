"""The tree size that pays most: tokens per forward over what a forward costs (Marzollo et al. 2024, figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from paceline.errors import ConfigError
from paceline.plan.acceptance import Acceptance
from paceline.plan.config import ModelCard
from paceline.plan.roofline import Peak, Work, free_budget

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # s_q that are shown
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Cost(NamedTuple):
    """Seconds of a forward, and of these matrix products and attention; None = not known apart."""

    seconds: float
    products: float | None = None
    attention: float | None = None


CostOf = Callable[[int, int], Cost]  # of sequences, and tokens fed for each


@dataclass(frozen=True, slots=True)
class Step:
    """One forward over trees of `size` tokens a sequence, the newest one and the draft nodes.

    Attributes:
        seconds, products, attention: as in `Cost`. relative: time over that of plain decoding.
        tokens: expected per forward and sequence.
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
        """Expected over plain decoding; drafting itself costs nothing here."""
        return self.tokens / self.relative

    @property
    def tokens_per_second(self) -> float:
        """Expected of the whole batch."""
        return self.batch * self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What drafting is worth for a model on a machine.

    Attributes:
        model, hardware, acceptance: in words.
        peak, budget: of the machine, and the tokens of a forward, b s_q, that cost almost nothing; None where it was measured, or
            there is no bound.
        steps: at `batch`, by size. best: of all sizes. batches: the best of every batch size.
        plain, drafted: operations of a forward without drafts, and at the best size; empty where it was measured.
        notes: what the reader must know.
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
    plain: tuple[Work, ...] = ()
    drafted: tuple[Work, ...] = ()
    notes: tuple[str, ...] = ()


def roofline_costs(card: ModelCard, context: int, peak: Peak) -> CostOf:
    """Return costs by the roofline behind `context` cached tokens."""

    def cost(batch: int, size: int) -> Cost:
        products, attention = card.shapes.seconds(batch, size, context, peak)
        return Cost(products + attention, products, attention)

    return cost


def steps_of(cost: CostOf, acceptance: Acceptance, batch: int, most: int) -> list[Step]:
    """Return the forwards of a batch with up to `most` tokens a sequence, from 1."""
    plain = cost(batch, 1).seconds
    found = []
    for size in range(1, most + 1):
        one = cost(batch, size)
        found.append(Step(batch, size, *one, one.seconds / plain, acceptance.of(size - 1)))
    return found


def best_of(steps: list[Step]) -> Step:
    """Return the step with the most tokens per second; of equals the smallest."""
    return max(steps, key=lambda step: step.speedup)


def sizes_within(acceptance: Acceptance, context: int, context_length: int | None) -> int:
    """Return the most tokens a forward may have for a sequence: what was measured, and what the model's context has room for.

    Raises:
        ConfigError: no room behind `context` cached tokens.
    """
    most = acceptance.most + 1
    if context_length is None:
        return most
    if context >= context_length:
        raise ConfigError(f"plan: context: got {context}; expected at most {context_length - 1}, as the model takes"
                          f" {context_length} tokens. Reduce it.")  # fmt: skip
    return min(most, context_length - context)


def plan_of(
    cost: CostOf,
    acceptance: Acceptance,
    batch: int,
    context: int,
    most: int,
    model: str,
    hardware: str,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan by any costs."""
    steps = steps_of(cost, acceptance, batch, most)
    best = best_of(steps)
    shown = tuple(step for step in steps if step.size in (*SIZES, best.size))
    batches = sorted({batch, *BATCHES})
    found = tuple(best if one == batch else best_of(steps_of(cost, acceptance, one, most)) for one in batches)
    return Plan(model, hardware, acceptance.source, batch, context, None, None, shown, best, found, notes=notes)


def budget_of(card: ModelCard, peak: Peak) -> float | None:
    """Return the free budget of the products with [hidden, hidden] weights; None where they never become bound by arithmetic."""
    return free_budget(card.shapes.hidden, peak, card.shapes.width)


def operations(card: ModelCard, batch: int, size: int, context: int) -> tuple[Work, ...]:
    """Return what a forward is made of: table 1 of the paper."""
    return (*card.shapes.products(batch, size), *card.shapes.attention(batch, size, context))
