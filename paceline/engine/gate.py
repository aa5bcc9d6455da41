"""Whether drafts that are fed whole are worth their forwards: tried in bursts, ever more rarely while they are not."""

from __future__ import annotations

_BURST, _LEAST_STEPS = 8, 2  # steps of a sequence after which a burst may end, and steps
_SHORTEST, _LONGEST = 32, 512  # steps without drafts between two bursts
_KEPT = 0.94  # of what earlier steps of a burst say, with every step


class Gate:
    """Open while a drafter yields at least what plain decoding would in the same time."""

    def __init__(self) -> None:
        self._tokens = self._cost = 0.0  # of the burst so far: tokens per sequence, and steps of plain decoding they took
        self._steps = self._samples = 0
        self._pause, self._next = 0, _SHORTEST

    def opens(self) -> bool:
        """Return whether the next step has drafts."""
        if self._pause > 0:
            self._pause -= 1
            return False
        return True

    def note(self, tokens: float, cost: float, sequences: int = 1) -> None:
        """Take in a step with drafts.

        Args:
            tokens: new ones per sequence. cost: its time over that of a step without drafts.
            sequences: that took part.
        """
        self._tokens = _KEPT * self._tokens + tokens
        self._cost = _KEPT * self._cost + cost
        self._steps += 1
        self._samples += sequences
        if self._samples < _BURST or self._steps < _LEAST_STEPS:
            return
        if self._tokens >= self._cost:
            self._next = _SHORTEST
            return
        self._pause, self._next = self._next, min(2 * self._next, _LONGEST)
        self._tokens = self._cost = 0.0
        self._steps = self._samples = 0
