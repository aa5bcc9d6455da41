"""The budget: how many draft nodes of a step are worth their forward, and whether drafting is worth it at all.

A step of a batch costs t(rows) seconds and yields Y tokens: for each sequence 1 + the chances of the paths to its nodes. Trees
come with the likeliest path first, so their first nodes are the best ones of that number, and closed under parents. Rows are
padded to the widest tree, so there is one width for the whole batch: that with the most tokens per second. 0 is plain decoding.
The curve was measured with one short text; what steps with and without drafts really take corrects it, per number of sequences.

Trees without confidence are fed whole or not at all: their drafter is left out while it yields less than plain decoding would in
the same time, and tried again ever more rarely; once it has paid it is back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as ListLike
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from paceline.common.compiled import compiled
from paceline.engine.cost_curve import CostCurve
from paceline.engine.drafter import Outcome
from paceline.engine.gate import Gate
from paceline.engine.reliability import FlatTrees, Reliability, corrected, count, new_reliability
from paceline.engine.tree import EMPTY_TREE, DraftTree, IntArray

_RATE = 0.1  # of the newest step in what steps were found to take
_FORGETTING = 0.005  # of that, with every step that tells nothing about it: what was too dear is tried again
_MOST_OFF = 3.0  # a curve is believed to be off by no more


class _Pace:
    """How much longer steps with drafts take than the curve says, compared with steps without; of one number of sequences."""

    def __init__(self) -> None:
        self._off = [0.0, 0.0]  # logarithms of seconds over those of the curve: without drafts, and with them
        self._known = [False, False]

    @property
    def factor(self) -> float:
        """Of the seconds of steps with drafts."""
        if not all(self._known):
            return 1.0
        return min(_MOST_OFF, max(1 / _MOST_OFF, math.exp(self._off[1] - self._off[0])))

    def note(self, drafted: bool, seconds: float, expected: float) -> None:
        """Take in a step."""
        off = math.log(max(seconds, 1e-9) / expected)
        self._off[drafted] = self._off[drafted] + _RATE * (off - self._off[drafted]) if self._known[drafted] else off
        self._known[drafted] = True
        if not drafted:
            self._off[1] += _FORGETTING * (self._off[0] - self._off[1])


class Spending:
    """Decides for one engine and one drafter.

    Args:
        curve: returns what a forward costs; asked when it is first needed.
    Attributes:
        reliability: what the drafter's confidence was worth so far.
    """

    def __init__(self, curve: Callable[[], CostCurve]) -> None:
        self.reliability = new_reliability()
        self._curve = curve
        self._costs: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._gate = Gate()
        self._proposed: FlatTrees | None = None  # by the trees of the step, where all of them carry confidence
        self._cost = 0.0  # of the step, in steps without drafts
        self._paces: dict[int, _Pace] = {}  # by the number of sequences
        self._step: tuple[int, bool, float] | None = None  # sequences, whether there are drafts, seconds by the curve

    def drafts(self) -> bool:
        """Return whether the drafter is asked for the next step."""
        return self._gate.opens()

    def cut(self, trees: list[DraftTree], sequences: int, pending: int) -> list[DraftTree]:
        """Return the trees with as many nodes as pay; those without confidence, and drawn ones, as they are.

        Args:
            trees: what was proposed for a step.
            sequences: that take part in the forward. pending: tokens each of them feeds besides, padding included.
        """
        widest = max(map(len, trees), default=0)
        by_curve = self._seconds(sequences, pending, widest)
        seconds = by_curve.copy()
        seconds[1:] *= self._paces.setdefault(sequences, _Pace()).factor
        self._proposed, self._cost, width = None, 0.0, widest
        if widest and all(tree.probs is None and (tree.confidence is not None or not len(tree)) for tree in trees):
            self._proposed = _flatten(trees)
            width = best_width(self.reliability, self._proposed, seconds)
            trees = [tree if len(tree) <= width else _first(tree, width) for tree in trees]
        elif widest:
            self._cost = float(seconds[-1] / seconds[0])
        # Prompts say nothing about decoding.
        self._step = (sequences, width > 0, float(by_curve[width])) if pending == 1 else None
        return trees

    def observe(self, outcomes: ListLike[Outcome], seconds: float) -> None:
        """Count what came true of the trees that were cut last, in their order.

        Args:
            seconds: from before the forward until the target had spoken.
        """
        if self._step is not None:
            sequences, drafted, expected = self._step
            self._paces[sequences].note(drafted, seconds, expected)
            self._step = None
        emitted = [outcome.new_token_ids for outcome in outcomes]
        if self._proposed is not None:
            ends = np.cumsum([0, *map(len, emitted)], dtype=np.int64)
            count(self.reliability, self._proposed, np.array(list(chain.from_iterable(emitted)), dtype=np.int64), ends)
        elif self._cost:
            self._gate.note(sum(map(len, emitted)) / len(emitted), self._cost, len(emitted))

    def _seconds(self, sequences: int, pending: int, widest: int) -> NDArray[np.float64]:
        """Return the seconds of a step by its width, [1 + widest], as the curve has them."""
        key = sequences, pending
        if len(self._costs.get(key, ())) <= widest:
            self._costs[key] = self._curve().of(sequences * np.arange(pending, pending + widest + 1))
        return self._costs[key][: widest + 1]


@compiled
def best_width(reliability: Reliability, trees: FlatTrees, seconds: NDArray[np.float64]) -> int:
    """Return the width with the most tokens per second.

    Args:
        seconds: of a step, by its width.
    """
    gains = np.zeros(len(seconds))
    chances = np.empty(len(trees.parents))
    for tree in range(len(trees.starts) - 1):
        first = trees.starts[tree]
        for node in range(first, trees.starts[tree + 1]):
            above = trees.parents[node]
            chance = corrected(reliability, trees.confidence[node])
            chances[node] = chance if above < 0 else chance * chances[first + above]
            gains[node - first + 1] += chances[node]
    tokens, best, most = float(len(trees.starts) - 1), 0, (len(trees.starts) - 1) / seconds[0]
    for width in range(1, len(seconds)):
        tokens += gains[width]
        if tokens / seconds[width] > most:
            best, most = width, tokens / seconds[width]
    return best


def _flatten(trees: ListLike[DraftTree]) -> FlatTrees:
    parents: list[int] = []
    token_ids: list[int] = []
    confidence: list[float] = []
    starts = [0]
    for tree in trees:
        parents += tree.parents
        token_ids += tree.token_ids
        confidence += tree.confidence or ()
        starts.append(len(parents))
    integers: list[IntArray] = [np.array(column, dtype=np.int64) for column in (parents, token_ids, starts)]
    return FlatTrees(integers[0], integers[1], np.array(confidence, dtype=np.float64), integers[2])


def _first(tree: DraftTree, width: int) -> DraftTree:
    if width == 0:
        return EMPTY_TREE
    return DraftTree(tree.token_ids[:width], tree.parents[:width], None, tree.confidence and tree.confidence[:width])
