"""What the drafters of a step offer, in the order in which it is taken, and what is left of it
where only so much pays.

What is taken is counted in units: a node, where a forward packs sequences, since that is a row;
where rows are padded to the widest tree, a node of every tree, since they cost the same then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration, FlatTrees, corrected
from paceline.draft_budget.drafter_state import DrafterBatch
from paceline.util.compiled import compiled

Floats = NDArray[np.float64]


class NodeSelector(ABC):
    """The trees of a step; those with `DrafterBatch.flat` may be cut.

    Attributes:
        unit: rows that a unit costs. most: units there are.
    """

    unit: int
    most: int

    def __init__(self, batches: Sequence[DrafterBatch]) -> None:
        self._parts = batches
        self._whole = [batch for batch in batches if batch.flat is None]
        self._plain = sum(len(batch.trees) for batch in batches)

    @abstractmethod
    def units(self, batch: DrafterBatch) -> int:
        """How many units the trees of a part are, as they are now."""

    @abstractmethod
    def cut(self, seconds: Floats) -> int:
        """Leave the trees that may be cut what pays beside those that may not; return the units of
        the step.

        Args:
            seconds: of a step by its units, [1 + most].
        """

    @abstractmethod
    def _best(self, seconds: Floats) -> int:
        """The units with the most tokens per second, if there were no trees but those that may
        be cut.
        """

    @abstractmethod
    def _with(self, below: int, batch: DrafterBatch) -> int:
        """The units of a step that had `below` once it has the whole trees of a part as well."""

    def charge(self, seconds: Floats) -> None:
        """Say what whole trees cost, in steps without them, where somebody asks.

        Args:
            seconds: as for `cut`.
        """
        below = self._best(seconds) if self._whole else 0
        for batch in sorted(self._whole, key=self.units):
            beside = self._with(below, batch)
            if batch.width and batch.drafter_state.stats is not None:
                batch.cost = float(seconds[beside] / seconds[below])
            below = beside


class PaddedSelector(NodeSelector):
    """Trees whose rows are padded to the widest one: a unit is a node of each."""

    def __init__(self, batches: Sequence[DrafterBatch], sequences: int) -> None:
        super().__init__(batches)
        self.unit, self.most = sequences, max((batch.width for batch in batches), default=0)
        gains = np.zeros(self.most + 1)
        gains[0] = self._plain
        for batch in batches:
            if batch.flat is not None and batch.drafter_state.stats is not None:
                chances = _chances(batch.drafter_state.stats.acceptance_calibration, batch.flat)[0]
                np.add.at(
                    gains,
                    1
                    + np.arange(len(chances))
                    - np.repeat(batch.flat.starts[:-1], np.diff(batch.flat.starts)),
                    chances,
                )
        self._tokens: Floats = gains.cumsum()

    def units(self, batch: DrafterBatch) -> int:
        """The nodes of its largest tree."""
        return batch.width

    def _best(self, seconds: Floats) -> int:
        return int((self._tokens / seconds).argmax())

    def cut(self, seconds: Floats) -> int:
        """Give all trees that may be cut the same width, at least that of those that may not."""
        floor = width = max(map(self.units, self._whole), default=0)
        if len(self._whole) < len(self._parts):
            width = floor + int((self._tokens[floor:] / seconds[floor:]).argmax())
        for batch in self._parts:
            if batch.flat is not None:
                batch.trees = [tree.first(width) for tree in batch.trees]
        return width

    def _with(self, below: int, batch: DrafterBatch) -> int:
        return max(below, batch.width)


class RaggedSelector(NodeSelector):
    """Trees whose nodes are a row each: the likeliest of the whole batch come first."""

    def __init__(self, batches: Sequence[DrafterBatch], sequences: int) -> None:
        super().__init__(batches)
        self._beside = sum(map(self.units, self._whole))
        self._cut_trees = 0
        chances, keys, trees = [np.empty(0)], [np.empty(0)], [np.empty(0, dtype=np.int64)]
        for batch in batches:
            if batch.flat is not None and batch.drafter_state.stats is not None:
                mine, least = _chances(batch.drafter_state.stats.acceptance_calibration, batch.flat)
                chances.append(mine)
                keys.append(least)
                trees.append(
                    self._cut_trees
                    + np.repeat(np.arange(len(batch.trees)), np.diff(batch.flat.starts))
                )
                self._cut_trees += len(batch.trees)
        order = np.argsort(-np.concatenate(keys), kind="stable")
        self._trees: IntArray = np.concatenate(trees)[order]
        self._tokens: Floats = np.cumsum([self._plain, *np.concatenate(chances)[order]])
        self.unit, self.most = 1, self._beside + len(order)

    def units(self, batch: DrafterBatch) -> int:
        """All its nodes."""
        return sum(map(len, batch.trees))

    def _best(self, seconds: Floats) -> int:
        return int((self._tokens / seconds[: len(self._tokens)]).argmax())

    def cut(self, seconds: Floats) -> int:
        """Leave the likeliest nodes of the batch; of every tree they are the first ones."""
        count = int((self._tokens / seconds[self._beside :]).argmax())
        kept = iter(np.bincount(self._trees[:count], minlength=self._cut_trees).tolist())
        for batch in self._parts:
            if batch.flat is not None:
                batch.trees = [tree.first(next(kept)) for tree in batch.trees]
        return self._beside + count

    def _with(self, below: int, batch: DrafterBatch) -> int:
        return below + self.units(batch)


@compiled
def _chances(
    acceptance_calibration: AcceptanceCalibration, trees: FlatTrees
) -> tuple[Floats, Floats]:
    """Return the chances of the paths to all nodes, and the least of those up to it in its tree:
    what never rises there.
    """
    chances, least = np.empty(len(trees.parents)), np.empty(len(trees.parents))
    for tree in range(len(trees.starts) - 1):
        first = trees.starts[tree]
        for node in range(first, trees.starts[tree + 1]):
            above = trees.parents[node]
            chance = corrected(acceptance_calibration, trees.confidence[node])
            chances[node] = chance if above < 0 else chance * chances[first + above]
            least[node] = chances[node] if node == first else min(chances[node], least[node - 1])
    return chances, least
