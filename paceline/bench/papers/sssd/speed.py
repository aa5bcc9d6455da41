"""Expected speed: accepted tokens over the cost of a step (Marzollo et al. 2024, figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.papers.part import BenchPart
from paceline.bench.papers.sssd.result import BATCHES, NOTHING, SIZES, Case, SssdResult
from paceline.plan.plan_settings import ASCEND, LLAMA_2_7B

TIMED = (4, 8, 16, 32)  # s_q by the clock
MEASURED, ROOFLINE = "measured", "roofline"
COSTS = {
    MEASURED: "cost",
    "CPU time": "cpu_cost",
    ROOFLINE: "roofline",
    "910B4": "device",
}  # kind -> field of `Speed`
_PAPER_CONTEXT = 512  # cached tokens where the paper's device is computed


@dataclass(frozen=True, slots=True)
class Speed:
    """One s_q of figure 2; None = not measured.

    Attributes:
        tokens: per step, over plain decoding's 1. published: likewise, with the paper's weights.
        cost: time of a step over plain decoding's, measured; cpu_cost: in processor time; roofline:
            computed for this machine; device: for the paper's device and model.
    """

    size: int
    tokens: float | None
    published: float | None
    cost: float | None
    cpu_cost: float | None
    roofline: float | None
    device: float | None

    def costs(self, kind: str) -> float | None:
        """Return the cost of one of the `COSTS`."""
        return getattr(self, COSTS[kind])  # type: ignore[no-any-return]

    def product(self, kind: str) -> float | None:
        """Return tokens per step over one of the `COSTS`: the speed that is to be expected, over
        plain decoding's.
        """
        cost = self.costs(kind)
        return self.tokens / cost if self.tokens is not None and cost else None


def drafter(size: int, store: str | None) -> str:
    """Return the drafter whose trees have `size` nodes, the root included."""
    place = "" if store is None else f"datastore={store},"
    return f"sssd:{place}max_nodes={size - 1},answer_cache_tokens=0"


def speeds(result: SssdResult, batch: int) -> list[Speed]:
    """Return figure 2 at a batch size: every s_q of which anything is known, at the smaller
    number of cached tokens.
    """
    replays, costs = result.replays or NOTHING, result.costs
    found = []
    for size in SIZES if costs is not None else replays.sizes:
        tokens, weighted = (replays.rate(method, size) for method in replays.fusions)
        here: tuple[float | None, float | None, float | None] = (None, None, None)
        if costs is not None:
            case = Case(batch, costs.contexts[0], size)
            roofline = costs.shapes.relative(batch, size, case.context, costs.peak)
            here = costs.relative(case), costs.relative(case, processor=True), roofline
        found.append(
            Speed(
                size,
                tokens,
                weighted,
                *here,
                LLAMA_2_7B.relative(batch, size, _PAPER_CONTEXT, ASCEND),
            )
        )
    return found


def best(found: Sequence[Speed], kind: str) -> Speed | None:
    """Return the s_q with the largest product; None where there is none."""
    known = [(value, one) for one in found if (value := one.product(kind)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def by_the_clock(result: SssdResult, batch: int) -> BenchPart | None:
    """Return the timed run at a batch size; None if it is missing."""
    return dict(zip(BATCHES, result.timed, strict=False)).get(batch)
