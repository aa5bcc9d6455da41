"""Compute the expected speed: tokens per step divided by cost (figure 2).

The paper is Marzollo et al. 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from papers.part import BenchPart
from papers.sssd.paper_settings import (
    BATCHES,
    PAPER_CONTEXT,
    SIZES,
)
from papers.sssd.paper_shapes import ASCEND, LLAMA_2_7B
from papers.sssd.result import NOTHING, Case, SssdResult

MEASURED, ROOFLINE = "measured", "roofline"
# kind -> field of `Speed`
COSTS = {MEASURED: "cost", "CPU time": "cpu_cost", ROOFLINE: "roofline", "910B4": "device"}


@dataclass(frozen=True, slots=True)
class Speed:
    """The values of figure 2 for one s_q; values that were not measured are None.

    Attributes:
        size: Number of query tokens per request, s_q.
        tokens: Number of tokens per step; 1 for plain decoding.
        published: Number of tokens per step with the paper's weights.
        cost: Measured step time relative to plain decoding.
        cpu_cost: The same ratio, measured in processor time.
        roofline: The same ratio according to the roofline model, for this machine.
        device: The same ratio according to the roofline model, for the paper's device and model.
    """

    size: int
    tokens: float | None
    published: float | None
    cost: float | None
    cpu_cost: float | None
    roofline: float | None
    device: float | None

    def costs(self, kind: str) -> float | None:
        """Return the cost of the given kind, a key of `COSTS`."""
        return getattr(self, COSTS[kind])  # type: ignore[no-any-return]

    def product(self, kind: str) -> float | None:
        """Return the expected speed-up over plain decoding: tokens per step / cost."""
        cost = self.costs(kind)
        return self.tokens / cost if self.tokens is not None and cost else None


def drafter(size: int, store: str | None) -> str:
    """Return the drafter whose trees have `size` nodes, including the root."""
    option = "" if store is None else f"datastore={store},"
    return f"sssd:{option}max_nodes={size - 1},answer_cache_tokens=0"


def speeds(result: SssdResult, batch: int) -> list[Speed]:
    """Return figure 2 for a batch size and the smaller number of cached tokens."""
    replays, costs = result.replays or NOTHING, result.costs
    points = []
    for size in SIZES if costs is not None else replays.sizes:
        tokens, weighted = (replays.rate(method, size) for method in replays.fusions)
        measured: tuple[float | None, float | None, float | None] = (None, None, None)
        if costs is not None:
            case = Case(batch, costs.contexts[0], size)
            roofline = costs.shapes.relative(batch, size, case.context, costs.peak)
            measured = costs.relative(case), costs.relative(case, processor=True), roofline
        points.append(
            Speed(
                size,
                tokens,
                weighted,
                *measured,
                LLAMA_2_7B.relative(batch, size, PAPER_CONTEXT, ASCEND),
            )
        )
    return points


def best(points: Sequence[Speed], kind: str) -> Speed | None:
    """Return the values for the s_q with the highest speed-up; None if there are none."""
    known = [(value, point) for point in points if (value := point.product(kind)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def by_the_clock(result: SssdResult, batch: int) -> BenchPart | None:
    """Return the timed run at a batch size; None if it is missing."""
    return dict(zip(BATCHES, result.timed, strict=False)).get(batch)
