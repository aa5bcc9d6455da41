"""Whether a source that takes time pays: tokens per second of steps with it and of steps without, the worse ever more rarely."""

from __future__ import annotations

import math
from time import perf_counter

_TRIAL = 8  # steps of a trial
_SHORTEST, _LONGEST = 32, 512  # steps between two trials
_KEPT = 0.95  # of what earlier steps of the same kind say, with every one


class Weighing:
    """Says for each step whether the source is asked: first so, then not, then as it was better, with trials of the other way.

    Attributes:
        asks: whether the next step has the source.
    """

    def __init__(self) -> None:
        self.asks = True
        self._better: bool | None = None  # not known
        # Without the source, and with it: steps, their tokens, and logarithms of their seconds, of which outliers change little.
        self._steps, self._tokens, self._logs = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        self._left, self._pause = _TRIAL, _SHORTEST
        self._fresh = True  # the first step of a kind pays for the change

    def note(self, tokens: int, seconds: float) -> None:
        """Take in a step, the source's time included."""
        if self._fresh:
            self._fresh = False
            return
        way = self.asks
        for sums, new in ((self._steps, 1.0), (self._tokens, tokens), (self._logs, math.log(max(seconds, 1e-9)))):
            sums[way] = _KEPT * sums[way] + new
        self._left -= 1
        if self._left == 0:
            self._decide()

    def _decide(self) -> None:
        """Go on with the better way, or try the other one."""
        if self._better == self.asks or not all(self._steps):
            self._go_on(not self.asks, _TRIAL)
            return
        without, having = (self._tokens[way] / self._steps[way] / math.exp(self._logs[way] / self._steps[way]) for way in (0, 1))
        better = having >= without
        self._pause = min(2 * self._pause, _LONGEST) if better == self._better else _SHORTEST
        self._better = better
        self._go_on(better, self._pause)

    def _go_on(self, asks: bool, steps: int) -> None:
        self._fresh = asks != self.asks
        self.asks, self._left = asks, steps


class Weighings:
    """A weighing for each number of sequences in a step, and the clock."""

    def __init__(self) -> None:
        self._weighings: dict[int, Weighing] = {}
        self._running: Weighing | None = None
        self._begun = 0.0

    def begin(self, sequences: int, telling: bool) -> bool:
        """Begin a step, and return whether it has the source.

        Args:
            telling: whether its time says something.
        """
        self._begun = perf_counter()
        weighing = self._weighings.setdefault(sequences, Weighing())
        self._running = weighing if telling else None
        return weighing.asks

    def end(self, tokens: int) -> None:
        """End the step, which brought so many tokens."""
        if self._running is not None:
            self._running.note(tokens, perf_counter() - self._begun)
            self._running = None
