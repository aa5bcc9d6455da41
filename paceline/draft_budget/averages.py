"""Average measured values, giving newer ones more weight."""

from __future__ import annotations


class DecayingMean:
    """A weighted mean in which earlier values lose weight with each new value.

    Args:
        decay: Factor by which each new value reduces the weight of the earlier ones; in (0, 1].
    Attributes:
        sum: Decayed, weighted sum of the values.
        weight: Decayed sum of the weights; 0 before the first value.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.sum = self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a value with a weight, and reduce the weight of all earlier values."""
        self.sum, self.weight = (
            self._decay * self.sum + value,
            self._decay * self.weight + weight,
        )

    def reset(self) -> None:
        """Discard all values."""
        self.sum = self.weight = 0.0

    @property
    def value(self) -> float:
        """The weighted mean of the values; undefined before the first value."""
        return self.sum / self.weight


class MovingAverage:
    """An exponential moving average that starts at the first value.

    Args:
        rate: Weight of the newest value; in (0, 1].
    Attributes:
        value: The average; 0 before the first value.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.value = 0.0

    def add(self, value: float) -> None:
        """Update the average with a new value."""
        self.value = value if not self.value else self.value + self._rate * (value - self.value)
