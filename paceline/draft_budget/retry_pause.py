"""Count down the pause between two trials of a drafter, with exponential back-off."""

from __future__ import annotations


class RetryPause:
    """Counts down the steps until the next trial.

    Args:
        min_steps: Length of the first pause, in steps.
        max_steps: Maximum length of a pause, in steps.
    """

    def __init__(self, min_steps: int, max_steps: int) -> None:
        self._min_steps, self._max_steps = min_steps, max_steps
        self._left, self._next = 0, min_steps

    @property
    def left(self) -> int:
        """Return the number of steps left before the next trial."""
        return self._left

    def waits(self) -> bool:
        """Return True if the pause includes the next step, and count down that step."""
        if self._left > 0:
            self._left -= 1
            return True
        return False

    def start(self, factor: int = 1) -> None:
        """Start a pause until the next trial, and make the following pause twice as long.

        Args:
            factor: Factor by which this pause is lengthened; at least 1.
        """
        self._left = min(factor * self._next, self._max_steps)
        self._next = min(2 * self._left, self._max_steps)

    def at_least(self, num_steps: int) -> None:
        """Lengthen the current pause to at least `num_steps` steps."""
        self._left = max(self._left, num_steps)

    def rest(self, num_steps: int) -> None:
        """Pause for exactly `num_steps` steps, without lengthening later pauses."""
        self._left = num_steps

    def reset(self) -> None:
        """Reset the next pause to the minimum length."""
        self._next = self._min_steps
