"""Define the cost curve, which predicts the duration of forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.draft_budget.settings import SHORT_TEXT
from paceline.util.stopwatch import Conditions


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds per forward pass for any number of rows.

    Between measured row counts, the curve interpolates the duration linearly. Above the largest
    measured row count, the curve extends its last segment.

    Attributes:
        rows: Measured row counts, in ascending order, starting with 1.
        seconds: Seconds per forward pass for each row count; never decreasing.
        further: For each row count, the additional seconds per cached token beyond the first
            SHORT_TEXT tokens. Empty if the duration does not grow with the length of the text.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    further: tuple[float, ...] = ()

    def of(self, rows: IntArray, context: float = 0.0) -> NDArray[np.float64]:
        """Return the durations of forward passes, in seconds.

        Args:
            rows: Number of rows in each forward pass.
            context: Length of the text before the rows, in tokens.
        """
        result = self._interpolate(rows, self.seconds)
        if self.further:
            result += max(0.0, context - SHORT_TEXT) * self._interpolate(rows, self.further)
        return result

    def _interpolate(self, rows: IntArray, measured: tuple[float, ...]) -> NDArray[np.float64]:
        result = np.interp(rows, self.rows, measured)
        if len(self.rows) > 1:
            slope = (measured[-1] - measured[-2]) / (self.rows[-1] - self.rows[-2])
            result += np.maximum(rows - self.rows[-1], 0) * slope
        return result


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """A measured cost curve, as stored in the cache.

    Attributes:
        curve: The cost curve.
        spreads: For each row count, the relative interquartile range of the repeated measurements.
        conditions: Conditions of the measurement.
    """

    curve: CostCurve
    spreads: tuple[float, ...]
    conditions: Conditions

    @classmethod
    def read(cls, attributes: dict[str, Any]) -> MeasuredCurve:
        """Build a curve from cached attributes.

        Raises:
            LookupError, TypeError, ValueError: The attributes are damaged.
        """
        curve = attributes["curve"]
        rows, seconds, further = (tuple(curve[name]) for name in ("rows", "seconds", "further"))
        if not rows or len(rows) != len(seconds) or len(further) not in (0, len(rows)):
            raise ValueError("not a cost curve")
        return cls(
            CostCurve(rows, seconds, further),
            tuple(attributes["spreads"]),
            Conditions.read(attributes["conditions"]),
        )
