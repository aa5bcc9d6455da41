"""Whether a source that takes time is asked: what it adds to the trees of the others, against its seconds.

Both trees of a step are known where it is asked, the others' and that with it, so one text says what each is worth: how far the
others' tree, cut to as many nodes, would have come, which may be farther; that shows in what the next steps say. The difference
scatters much less than two texts do. It is kept by how many tokens the others expect, since where they know what follows nothing
is left to add.

The source is asked where that many tokens, at the speed of all steps, take longer than it does; what is not well known yet is
taken for more, by one standard deviation of the mean, since few trials decide nothing.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from time import perf_counter

from paceline.engine.drafter import Outcome
from paceline.engine.sequence import Sequence
from paceline.engine.tree import DraftTree

_EDGES = (0.5, 1.0, 2.0, 4.0)  # between the steps of what others expect
_COUNTED = 8  # of their nodes, the likeliest
_FIRST, _PRIOR = 1.0, 1.0  # tokens that it adds before anything was counted, and how many sequences' word that is
_MEMORY = 200.0  # sequences, at a step of what others expect, that are remembered
_KEPT = 0.98  # of what earlier steps say of time, with every one
_SHORTEST, _LONGEST = 16, 256  # steps that do not ask between two trials


class _Mean:
    """A mean that forgets. Attributes: sum. weight: 0 = nothing is known."""

    def __init__(self) -> None:
        self.sum = self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.sum, self.weight = _KEPT * self.sum + value, _KEPT * self.weight + weight

    @property
    def value(self) -> float:
        return self.sum / self.weight


class _Gains:
    """What the source adds where others expect about as much.

    Attributes:
        refused: steps that did not ask, since the last that did. pause: so many before the next trial.
    """

    def __init__(self) -> None:
        self._sum, self._squares, self._count = _FIRST * _PRIOR, (_FIRST**2 + 1) * _PRIOR, _PRIOR
        self.refused, self.pause = 0, _SHORTEST

    @property
    def hoped(self) -> float:
        """The mean and one standard deviation of it."""
        mean = self._sum / self._count
        return mean + math.sqrt(max(0.0, self._squares / self._count - mean * mean) / self._count)

    def add(self, tokens: int) -> None:
        """Take in that it added so many, or took so many away."""
        if self._count >= _MEMORY:
            self._sum, self._squares, self._count = self._sum / 2, self._squares / 2, self._count / 2
        self._sum, self._squares, self._count = self._sum + tokens, self._squares + tokens * tokens, self._count + 1


class Asking:
    """Says for each step with a certain number of sequences whether the source is asked."""

    def __init__(self) -> None:
        self._gains = [_Gains() for _ in range(len(_EDGES) + 1)]
        self._token = _Mean()  # seconds of one
        self._price = _Mean()  # logarithms of the seconds of asking, of which outliers, as a prompt is, change little

    def asks(self, expected: ListLike[float]) -> bool:
        """Whether the next step asks: where that pays, and now and then where it does not.

        Args:
            expected: by the others, tokens of each sequence.
        """
        gain = sum(self._at(one).hoped for one in expected)
        usual = self._at(sum(expected) / len(expected))
        if not self._price.weight or not self._token.weight or gain * self._token.value >= math.exp(self._price.value):
            usual.refused, usual.pause = 0, _SHORTEST
            return True
        usual.refused += 1
        if usual.refused <= usual.pause:
            return False
        usual.refused, usual.pause = 0, min(2 * usual.pause, _LONGEST)
        return True

    def note(self, tokens: int, seconds: float) -> None:
        """Take in a step, the source's time included."""
        self._token.add(seconds, tokens)

    def note_price(self, seconds: float) -> None:
        """Take in how long it took to ask."""
        self._price.add(math.log(max(seconds, 1e-9)))

    def note_gain(self, expected: float, gain: int) -> None:
        """Take in what asking was worth.

        Args:
            expected: by the others, of the sequence. gain: its tokens less those that the others' tree would have had.
        """
        self._at(expected).add(gain)

    def _at(self, expected: float) -> _Gains:
        return self._gains[bisect(_EDGES, expected)]


@dataclass(slots=True)
class _Open:
    """A step that has asked, until the text shows how far the others' tree would have come.

    Attributes:
        asking: that learns of it. expected: as in `Asking.asks`.
        edges: of the others' tree. node, at: reached in it, and the place in the text behind.
        end: place in the text behind what the step had.
    """

    asking: Asking
    expected: float
    edges: dict[tuple[int, int], int]
    end: int
    at: int
    node: int = -1

    def settle(self, token_ids: ListLike[int], ended: bool) -> bool:
        """Go on along the text, and return whether it is known what asking was worth; if so, that is taken in.

        Args:
            ended: no more text comes.
        """
        while self.at < len(token_ids):
            following = self.edges.get((self.node, token_ids[self.at]))
            if following is None:
                break
            self.node, self.at = following, self.at + 1
        if self.at == len(token_ids) and not ended:
            return False
        behind = self.at < len(token_ids)  # the token that the target would have said after it
        self.asking.note_gain(self.expected, self.end - (self.at + behind))
        return True


class Askings:
    """That for each number of sequences in a step, and the clock."""

    def __init__(self) -> None:
        self._by_number: dict[int, Asking] = {}
        self._running: Asking | None = None
        self._others: dict[int, DraftTree] = {}  # by sequence
        self._open: dict[int, list[_Open]] = {}  # likewise
        self._begun = self._seconds = 0.0

    def begin(self, others: dict[int, DraftTree], telling: bool) -> bool:
        """Begin a step, and return whether it asks.

        Args:
            others: trees without the source, by sequence, the likeliest nodes first.
            telling: whether its time says something.
        """
        self._begun, self._others, self._seconds = perf_counter(), others, 0.0
        asking = self._by_number.setdefault(len(others), Asking())
        self._running = asking if telling else None
        return asking.asks([_expected(tree) for tree in others.values()])

    def asked(self) -> None:
        """The source has answered."""
        self._seconds = perf_counter() - self._begun

    def end(self, outcomes: ListLike[Outcome]) -> None:
        """End the step."""
        if self._running is None:
            return
        self._running.note(sum(len(one.new_token_ids) for one in outcomes), perf_counter() - self._begun)
        if self._seconds:
            self._running.note_price(self._seconds)
        for one in outcomes:
            seq = one.seq
            waiting = self._open.pop(seq.id, [])
            if self._seconds:
                tree, end = self._others[seq.id], len(seq.token_ids)
                edges = tree.edges(min(len(one.tree), len(tree)))
                waiting.append(_Open(self._running, _expected(tree), edges, end, end - len(one.new_token_ids)))
            self._settle(seq, waiting, ended=False)
        self._running = None

    def stop(self, seq: Sequence) -> None:
        """Free what belongs to a sequence, whose text is as long as it will be."""
        self._settle(seq, self._open.pop(seq.id, []), ended=True)

    def _settle(self, seq: Sequence, waiting: list[_Open], ended: bool) -> None:
        left = [one for one in waiting if not one.settle(seq.token_ids, ended)]
        if left:
            self._open[seq.id] = left


def _expected(tree: DraftTree) -> float:
    """Return how many drafts of a tree come true, by its chances."""
    return sum(tree.first(_COUNTED).path_chances()) if tree.token_ids else 0.0
