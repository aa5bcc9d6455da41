"""What the proof of batch invariance found on a machine; made by
`paceline.invariance.invariance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.util.stopwatch import Conditions


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was found for one kind of module.

    Attributes:
        name: of the first such module; shape: "in -> out"; times: how many there are.
        tried: the largest row count tried.
        runs: the first count of each run of row counts that agree with one another.
    """

    name: str
    shape: str
    times: int
    tried: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Which row counts give a row the same bits in every module of a model, on one machine.

    Attributes:
        least, most: the widest class of row counts.
        cost: time of the products for `least` rows, relative to one row, measured.
        reason: why there is no usable class; "" where there is one.
        seconds: what the search took.
        own_products: the products are ours (`engine/products`), whose rows do not see each other.
        fixed_rows: of every product, each of which is of so many; 0 = of as many as the forward
            has.
        whole_cost: time of a forward of one row behind a text, attention and all, relative to the
            usual one, measured.
        conditions: of these measurements, the worst of them; None where nothing was measured.
    """

    least: int
    most: int
    cost: float
    reason: str
    findings: tuple[ProbeResult, ...]
    seconds: float
    own_products: bool = False
    whole_cost: float = 1.0
    fixed_rows: int = 0
    conditions: Conditions | None = None

    @property
    def products(self) -> str:
        """What is said of the products."""
        return (
            "with our products"
            if self.own_products
            else f"in products of {self.fixed_rows}"
            if self.fixed_rows
            else ""
        )

    @property
    def doubtful(self) -> bool:
        """Whether other programs disturbed the measurement of the costs, and fewer would now."""
        return (
            self.conditions is not None and not self.conditions.quiet and self.conditions.calmer_now
        )

    @staticmethod
    def read(kept: dict[str, Any]) -> ProbeReport:
        """Return the proof that `dataclasses.asdict` wrote."""
        findings = tuple(
            ProbeResult(**{**one, "runs": tuple(one["runs"])}) for one in kept["findings"]
        )
        conditions = kept["conditions"]
        return ProbeReport(
            **{
                **kept,
                "findings": findings,
                "conditions": conditions and Conditions.read(conditions),
            }
        )
