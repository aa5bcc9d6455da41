"""Whether a source that takes time is asked: what it adds to the trees of the others, against its
seconds.

Both trees of a step are known where it is asked, the others' and that with it, so one text says
what each is worth: how far the others' tree, cut to as many nodes, would have come, which may be
farther; that shows in what the next steps say. The difference scatters much less than two texts do.

The source is asked where that many tokens, at the speed of all steps, take longer than it does;
what is not well known yet is taken for more, since few trials decide nothing; the cheaper it is,
the surer must be that it does not pay. What it adds differs little by how much the others expect:
to decide by that as well is to decide by noise (docs/one-tree.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree

_FIRST, _PRIOR = (
    1.0,
    1.0,
)  # tokens that it adds before anything was counted, and how many sequences' word that is
# over its share of a step's time: by so many standard deviations is what it adds taken for more, or
# by one
_PATIENCE = 0.15
_MEMORY = 400.0  # sequences that are remembered
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


class DraftModelGate:
    """Says for each step with a certain number of sequences whether the source is asked."""

    def __init__(self) -> None:
        # Tokens that it added: their sum, that of their squares, and of how many sequences.
        self._sum, self._squares, self._count = _FIRST * _PRIOR, (_FIRST**2 + 1) * _PRIOR, _PRIOR
        self._token, self._step = _Mean(), _Mean()  # seconds of one
        self._price = (
            _Mean()
        )  # logarithms of the seconds of asking, of which outliers, as a prompt is, change little
        self._refused, self._pause = (
            0,
            _SHORTEST,
        )  # steps since the last that asked; so many before the next trial

    def asks(self, sequences: int) -> bool:
        """Whether the next step asks: where that pays, and now and then where it does not."""
        if not self._price.weight or not self._token.weight:
            return True
        price = math.exp(self._price.value)
        deviations = max(1.0, _PATIENCE * self._step.value / price)
        if sequences * self._gain_upper_bound(deviations) * self._token.value >= price:
            self._refused, self._pause = 0, _SHORTEST
            return True
        self._refused += 1
        if self._refused <= self._pause:
            return False
        self._refused, self._pause = 0, min(2 * self._pause, _LONGEST)
        return True

    def _gain_upper_bound(self, deviations: float) -> float:
        """Return the mean of what it adds to a sequence, and so many standard deviations of that
        mean.
        """
        mean = self._sum / self._count
        return mean + deviations * math.sqrt(
            max(0.0, self._squares / self._count - mean * mean) / self._count
        )

    def note(self, tokens: int, seconds: float) -> None:
        """Take in a step, the source's time included."""
        self._token.add(seconds, tokens)
        self._step.add(seconds)

    def record_cost(self, seconds: float) -> None:
        """Take in how long it took to ask."""
        self._price.add(math.log(max(seconds, 1e-9)))

    def record_gain(self, tokens: int) -> None:
        """Take in what asking was worth to a sequence: its tokens less those that the others'
        tree would have had.
        """
        if self._count >= _MEMORY:
            self._sum, self._squares, self._count = (
                self._sum / 2,
                self._squares / 2,
                self._count / 2,
            )
        self._sum, self._squares, self._count = (
            self._sum + tokens,
            self._squares + tokens * tokens,
            self._count + 1,
        )


@dataclass(slots=True)
class _Open:
    """A step that has asked, until the text shows how far the others' tree would have come.

    Attributes:
        asking: that learns of it.
        edges: of the others' tree. node, at: reached in it, and the place in the text behind.
        end: place in the text behind what the step had.
    """

    asking: DraftModelGate
    edges: dict[tuple[int, int], int]
    end: int
    at: int
    node: int = -1

    def resolve_batch_invariance(self, token_ids: Sequence[int], ended: bool) -> bool:
        """Go on along the text, and return whether it is known what asking was worth; if so, that
        is taken in.

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
        self.asking.record_gain(self.end - (self.at + behind))
        return True


class DraftModelGates:
    """That for each number of sequences in a step, and the clock."""

    def __init__(self) -> None:
        self._by_number: dict[int, DraftModelGate] = {}
        self._running: DraftModelGate | None = None
        self._others: dict[int, DraftTree] = {}  # by sequence
        self._open: dict[int, list[_Open]] = {}  # likewise
        self._begun = self._seconds = 0.0

    @property
    def has_asked(self) -> bool:
        """Whether the newest step has asked."""
        return self._seconds > 0

    def begin(self, others: dict[int, DraftTree], telling: bool) -> bool:
        """Begin a step, and return whether it asks.

        Args:
            others: trees without the source, by sequence, the likeliest nodes first.
            telling: whether its time says something.
        """
        self._begun, self._others, self._seconds = perf_counter(), others, 0.0
        asking = self._by_number.setdefault(len(others), DraftModelGate())
        self._running = asking if telling else None
        return asking.asks(len(others))

    def asked(self) -> None:
        """The source has answered."""
        self._seconds = perf_counter() - self._begun

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """End the step."""
        if self._running is None:
            return
        self._running.note(
            sum(len(one.new_token_ids) for one in outcomes), perf_counter() - self._begun
        )
        if self.has_asked:
            self._running.record_cost(self._seconds)
        for one in outcomes:
            request = one.request
            waiting = self._open.pop(request.id, [])
            if self.has_asked:
                tree, end = self._others[request.id], len(request.token_ids)
                edges = tree.edges(min(len(one.tree), len(tree)))
                waiting.append(_Open(self._running, edges, end, end - len(one.new_token_ids)))
            self._settle(request, waiting, ended=False)
        self._running = None

    def stop(self, request: Request) -> None:
        """Free what belongs to a sequence, whose text is as long as it will be."""
        self._settle(request, self._open.pop(request.id, []), ended=True)

    def _settle(self, request: Request, waiting: list[_Open], ended: bool) -> None:
        left = [
            one for one in waiting if not one.resolve_batch_invariance(request.token_ids, ended)
        ]
        if left:
            self._open[request.id] = left
