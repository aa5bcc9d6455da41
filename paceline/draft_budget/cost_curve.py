"""What a forward of a model costs on this machine, by the rows it is fed and the text before
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.util.stopwatch import Conditions

SHORT_TEXT, LONG_TEXT = 32, 512  # tokens in front of the rows that are measured


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Between the measured numbers of rows the cost is a line, and beyond them the last line
    continues.

    Attributes:
    rows: numbers of rows, ascending, the first 1. seconds: of a forward of so many, never falling.
    further: seconds that every token of the text before them adds beyond the measured ones,
        likewise; empty: none.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    further: tuple[float, ...] = ()

    def of(self, rows: IntArray, context: float = 0.0) -> NDArray[np.float64]:
        """Return the seconds of forwards of `rows` rows each behind `context` tokens."""
        found = self._line(rows, self.seconds)
        if self.further:
            found += max(0.0, context - SHORT_TEXT) * self._line(rows, self.further)
        return found

    def _line(self, rows: IntArray, measured: tuple[float, ...]) -> NDArray[np.float64]:
        found = np.interp(rows, self.rows, measured)
        if len(self.rows) > 1:
            slope = (measured[-1] - measured[-2]) / (self.rows[-1] - self.rows[-2])
            found += np.maximum(rows - self.rows[-1], 0) * slope
        return found


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """A curve as it is kept.

    Attributes:
        spreads: relative distance of the quartiles of the repeats, for each of the curve's numbers
            of rows.
        conditions: under which it was measured.
    """

    curve: CostCurve
    spreads: tuple[float, ...]
    conditions: Conditions

    @classmethod
    def read(cls, kept: dict[str, Any]) -> MeasuredCurve:
        """Make it from its attributes again.

        Raises:
            LookupError, TypeError, ValueError: they are damaged.
        """
        curve = kept["curve"]
        rows, seconds, further = (tuple(curve[name]) for name in ("rows", "seconds", "further"))
        if not rows or len(rows) != len(seconds) or len(further) not in (0, len(rows)):
            raise ValueError("not a cost curve")
        return cls(
            CostCurve(rows, seconds, further),
            tuple(kept["spreads"]),
            Conditions.read(kept["conditions"]),
        )
