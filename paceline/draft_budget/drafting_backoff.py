"""Whether a drafter is asked at all. Drafts that are fed whole are tried in bursts, ever more
rarely while they do not pay.

A burst begins with a few sequences of a batch, where others need not be as wide as these; once they
pay, all have drafts.

A drafter whose trees are cut to what pays is asked at most steps: one step in five once they have
been cut to nothing for long.
"""

from __future__ import annotations

_BURST, _LEAST_STEPS = 8, 2  # steps of a sequence after which a burst may end, and steps
_SHORTEST, _LONGEST = 32, 512  # steps without drafts between two bursts
_PATIENCE, _LONGEST_REST = (
    4,
    4,
)  # steps whose trees were cut to nothing before the first is left out; and most in a row
# tokens that a burst may have cost: cheap drafts are judged by more steps, as few of them say
# little
_SLACK = 0.4
_KEPT = 0.94  # of what earlier steps of a burst say, with every step
_FEW = 4  # sequences of a batch that a burst begins with
# A step of a few sequences that takes so many of plain decoding, and whose drafts bring less than
# such a share of what would pay for it, ends a burst, and four times the pause follows.
_DEAR, _HOPELESS = 1.5, 0.5


class DraftingBackoff:
    """Open while a drafter yields at least what plain decoding would in the same time."""

    def __init__(self) -> None:
        self._tokens = self._cost = (
            0.0  # of the burst so far: tokens per sequence, and steps of plain decoding they took
        )
        self._steps = self._samples = 0
        self._pause, self._next = 0, _SHORTEST
        self._in_vain = 0  # steps in a row whose trees were cut to nothing
        self._tried = True  # and not known to pay, or to be cut to what does

    def opens(self) -> bool:
        """Return whether the next step has drafts."""
        if self._pause > 0:
            self._pause -= 1
            return False
        return True

    @property
    def most(self) -> int | None:
        """How many sequences are enough to try it with, where others do not pay for them; None =
        all.
        """
        return _FEW if self._tried else None

    def admits(self, sequences: int, packed: bool) -> int:
        """Return how many of them have drafts in the next step.

        Args:
            packed: nobody pays for others' drafts.
        """
        if not self.opens():
            return 0
        return self.most if packed and self.most is not None else sequences

    def note(self, tokens: float, cost: float, sequences: int = 1) -> None:
        """Take in a step with drafts.

        Args:
            tokens: new ones per sequence. cost: its time over that of a step without drafts.
            sequences: that had drafts.
        """
        self._tokens = _KEPT * self._tokens + tokens
        self._cost = _KEPT * self._cost + cost
        self._steps += 1
        self._samples += sequences
        early = self._steps < _LEAST_STEPS
        if early:
            hopeless = self._cost > _DEAR and self._tokens - 1 < _HOPELESS * (self._cost - 1)
            if self._samples < _FEW or not hopeless:
                return
        elif self._samples < _BURST:
            return
        if self._tokens >= self._cost:
            if self._tried:  # with few, which may cost less each
                self._forget()
            else:
                self._next = _SHORTEST
            self._tried = False
            return
        if not early and self._tokens + _SLACK >= self._cost:
            return
        self._pause = min(4 * self._next, _LONGEST) if early else self._next
        self._next = min(2 * self._pause, _LONGEST)
        self._tried = True
        self._forget()

    def _forget(self) -> None:
        self._tokens = self._cost = 0.0
        self._steps = self._samples = 0

    def note_cut(self, nodes: int) -> None:
        """Take in a step whose trees were cut, to so many nodes at most."""
        self._tried = False
        self._in_vain = 0 if nodes else self._in_vain + 1
        self._pause = min(max(0, self._in_vain - _PATIENCE), _LONGEST_REST)
