"""Define the results of the batch-invariance probes on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.util.stopwatch import Conditions


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of the probes for one kind of module.

    Attributes:
        name: Name of the first such module in the model.
        shape: Shape of the module, such as "in -> out".
        times: Number of modules of this kind in the model.
        tried: Largest row count that was probed.
        runs: First row count of each range of row counts with bit-identical results.
    """

    name: str
    shape: str
    times: int
    tried: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Results of the batch-invariance probes for one model on this machine.

    The report describes the widest range of row counts for which all results are bit-identical.
    The saved report uses the names of the fields as keys.

    Attributes:
        least: Smallest row count in the range.
        most: Largest row count in the range.
        cost: Measured time with batch invariance, divided by the time without it. If paceline's
            kernels compute the matrix products, both are times of a whole answer
            (`Trial.answer_cost`). Otherwise, both are times of the matrix products alone.
        reason: Why there is no usable range; "" if there is one.
        findings: Result of the probes for each kind of module.
        seconds: Duration of the probes.
        own_products: Whether paceline's kernels compute the matrix products. These kernels compute
            each row independently of the other rows.
        fixed_rows: Fixed number of rows in every matrix product; 0 means that the number is not
            fixed.
        whole_cost: Measured time of a forward pass over one row with cached text, divided by the
            time of the same pass without batch invariance.
        usual_seconds: Measured time of a forward pass over one row with cached text, without batch
            invariance, in seconds.
        conditions: Conditions during the most disturbed measurement; None if nothing was measured.
            Other programs on the machine disturb measurements.
    """

    least: int
    most: int
    cost: float
    reason: str
    findings: tuple[ProbeResult, ...]
    seconds: float
    own_products: bool = False
    whole_cost: float = 1.0
    usual_seconds: float = 0.0
    fixed_rows: int = 0
    conditions: Conditions | None = None

    @property
    def highest_cost(self) -> float:
        """The higher of `cost` and `whole_cost`."""
        return max(self.cost, self.whole_cost)

    @property
    def products(self) -> str:
        """Description of the matrix products; "" for torch's ordinary products."""
        return (
            "with paceline's matrix products"
            if self.own_products
            else f"with matrix products padded to {self.fixed_rows} rows"
            if self.fixed_rows
            else ""
        )

    @property
    def doubtful(self) -> bool:
        """True if other programs disturbed the timing, but the machine is quieter now."""
        return self.conditions is not None and self.conditions.doubtful

    @staticmethod
    def read(saved: dict[str, Any]) -> ProbeReport:
        """Return a report that was saved with `dataclasses.asdict`."""
        findings = tuple(
            ProbeResult(**{**finding, "runs": tuple(finding["runs"])})
            for finding in saved["findings"]
        )
        conditions = saved["conditions"]
        return ProbeReport(
            **{
                **saved,
                "findings": findings,
                "conditions": conditions and Conditions.read(conditions),
            }
        )
