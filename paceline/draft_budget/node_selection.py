"""Choose which draft nodes a step verifies, to maximise tokens per second.

Nodes are chosen in units. In a ragged batch, every node is one row of the forward pass, and a unit
is one node. In a padded batch, all trees are padded to the widest tree, and a unit is one node from
every tree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from paceline.core.flat_trees import FlatTrees, Floats
from paceline.core.tree import IntArray
from paceline.draft_budget.acceptance_calibration import (
    AcceptanceCalibration,
    add_path_probabilities,
    path_probabilities,
)
from paceline.draft_budget.best_count import best_count, nodes_per_tree, tree_of_nodes
from paceline.draft_budget.budgeted_drafts import BudgetedDrafts
from paceline.util.compiled import compiled


class NodeSelector(ABC):
    """Selects the draft nodes that a step verifies, and cuts the draft trees to them.

    Nodes are selected in units. In a ragged batch, a unit is one node. In a padded batch, a unit is
    one node of every tree. Some trees cannot be cut; the step verifies all nodes of these trees.

    Args:
        all_drafts: Draft trees of the step, by drafter. The method `cut` replaces the trees.
    Attributes:
        rows_per_unit: Number of rows that a unit adds to the forward pass.
        num_units: Number of units in the proposed trees.
        num_free_units: Number of units that add no rows, because the trees that cannot be cut need
            these rows anyway.
    """

    rows_per_unit: int
    num_units: int
    num_free_units = 0

    def __init__(self, all_drafts: Sequence[BudgetedDrafts]) -> None:
        self._drafts = all_drafts
        self._whole = [drafts for drafts in all_drafts if drafts.flat is None]
        self._num_trees = sum(len(drafts.trees) for drafts in all_drafts)

    @abstractmethod
    def units(self, drafts: BudgetedDrafts) -> int:
        """Return the number of units (see `NodeSelector`) in the trees of `drafts`."""

    @abstractmethod
    def entry_units(self, drafts: BudgetedDrafts) -> IntArray:
        """Return the index of each node's unit; see `NodeSelector`."""

    @abstractmethod
    def cut(self, seconds: Floats) -> int:
        """Cut the trees that can be cut; return how many units (`NodeSelector`) remain.

        Args:
            seconds: Duration of the step for 0, 1, ... units (`NodeSelector`), [1 + num_units].
        """

    @abstractmethod
    def _best_units(self, seconds: Floats) -> int:
        """Return the number of units (`NodeSelector`) that maximises tokens per second.

        Only trees that can be cut are considered.
        """

    @abstractmethod
    def _units_with(self, num_units: int, drafts: BudgetedDrafts) -> int:
        """Return the number of units (see `NodeSelector`) after adding `drafts`.

        Args:
            num_units: Number of units before.
            drafts: Drafts to add.
        """

    def charge(self, seconds: Floats) -> None:
        """Set the `cost` of drafts that cannot be cut, for use by `DraftingBackoff`.

        The method adds these drafts to the step one after another, those with the fewest units
        first. The cost of drafts is a ratio: the duration of the step after they were added,
        divided by the duration before.

        Args:
            seconds: Duration of the step for 0, 1, ... units (`NodeSelector`), [1 + num_units].
        """
        before = self._best_units(seconds) if self._whole else 0
        for drafts in sorted(self._whole, key=self.units):
            after = self._units_with(before, drafts)
            if drafts.width and drafts.state.stats is not None:
                drafts.cost = float(seconds[after] / seconds[before])
            before = after


class PaddedSelector(NodeSelector):
    """Selects one width (nodes per tree), because all trees are padded to the widest.

    Args:
        all_drafts: Draft trees of the step, by drafter. The method `cut` replaces the trees.
        num_requests: Number of requests in the forward pass.
    """

    def __init__(self, all_drafts: Sequence[BudgetedDrafts], num_requests: int) -> None:
        super().__init__(all_drafts)
        self.rows_per_unit = num_requests
        self.num_units = max((drafts.width for drafts in all_drafts), default=0)
        self.num_free_units = max(map(self.units, self._whole), default=0)
        gains = np.zeros(self.num_units + 1)
        gains[0] = self._num_trees
        for drafts in all_drafts:
            if drafts.flat is not None and drafts.state.stats is not None:
                calibration = drafts.state.stats.acceptance_calibration
                add_path_probabilities(calibration, drafts.flat, gains)
        self._gains: Floats = gains

    def units(self, drafts: BudgetedDrafts) -> int:
        """Return the number of nodes in the largest tree."""
        return drafts.width

    def entry_units(self, drafts: BudgetedDrafts) -> IntArray:
        """Return the index of each node in its tree."""
        assert drafts.flat is not None, "trees that may be cut"
        starts = drafts.flat.starts
        return np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))

    def _best_units(self, seconds: Floats) -> int:
        return best_count(self._gains, seconds)

    def cut(self, seconds: Floats) -> int:
        """Cut trees to one width, no narrower than the widest tree that cannot be cut."""
        width = self.num_free_units
        if len(self._whole) < len(self._drafts):
            width = best_count(self._gains, seconds, width)
        for drafts in self._drafts:
            if drafts.flat is not None:
                drafts.cut_to([width] * len(drafts.trees))
        return width

    def _units_with(self, num_units: int, drafts: BudgetedDrafts) -> int:
        return max(num_units, drafts.width)


class RaggedSelector(NodeSelector):
    """Selects the most likely nodes in the whole batch; every node is one row."""

    def __init__(self, all_drafts: Sequence[BudgetedDrafts]) -> None:
        super().__init__(all_drafts)
        self._whole_units = sum(map(self.units, self._whole))
        self._num_cut_trees = 0
        gains, keys, trees = (
            [np.full(1, float(self._num_trees))],
            [np.empty(0)],
            [np.empty(0, dtype=np.int64)],
        )
        self._first_nodes: dict[int, int] = {}  # by id of the drafts
        num_nodes = 0
        for drafts in all_drafts:
            if drafts.flat is not None and drafts.state.stats is not None:
                probabilities, bounds = _path_bounds(
                    drafts.state.stats.acceptance_calibration, drafts.flat
                )
                gains.append(probabilities)
                keys.append(bounds)
                trees.append(self._num_cut_trees + tree_of_nodes(drafts.flat.starts))
                self._num_cut_trees += len(drafts.trees)
                self._first_nodes[id(drafts)] = num_nodes
                num_nodes += len(bounds)
        self._order = np.argsort(-np.concatenate(keys), kind="stable")
        self._trees: IntArray = np.concatenate(trees)
        self._gains: Floats = np.concatenate(gains)[np.append(0, 1 + self._order)]
        self.rows_per_unit, self.num_units = 1, self._whole_units + len(self._order)

    def units(self, drafts: BudgetedDrafts) -> int:
        """Return the total number of nodes in all trees."""
        return sum(map(len, drafts.trees))

    def entry_units(self, drafts: BudgetedDrafts) -> IntArray:
        """Return each node's rank by path probability.

        The nodes of trees that cannot be cut rank before all other nodes.
        """
        assert drafts.flat is not None, "trees that may be cut"
        ranks = np.empty_like(self._order)
        ranks[self._order] = np.arange(len(ranks))
        first = self._first_nodes[id(drafts)]
        return self._whole_units + ranks[first : first + len(drafts.flat.parents)]

    def _best_units(self, seconds: Floats) -> int:
        return best_count(self._gains, seconds[: len(self._gains)])

    def cut(self, seconds: Floats) -> int:
        """Keep the most likely nodes of the batch; they come first in every tree."""
        count = best_count(self._gains, seconds[self._whole_units :])
        lengths = iter(nodes_per_tree(self._trees, self._order[:count], self._num_cut_trees))
        for drafts in self._drafts:
            if drafts.flat is not None:
                drafts.cut_to([next(lengths) for _ in drafts.trees])
        return self._whole_units + count

    def _units_with(self, num_units: int, drafts: BudgetedDrafts) -> int:
        return num_units + self.units(drafts)


@compiled
def _path_bounds(calibration: AcceptanceCalibration, trees: FlatTrees) -> tuple[Floats, Floats]:
    """Return each node's path probability, and a bound by which to sort the nodes.

    The bound of a node is the lowest path probability of this node and of all nodes before it in
    the tree. Within a tree, bounds never increase. Sorting nodes by bound therefore keeps the order
    of the nodes within each tree. For example, for a tree of three nodes:

        path probabilities: 0.5 0.2 0.3    bounds: 0.5 0.2 0.2
    """
    probabilities = path_probabilities(calibration, trees)
    bounds = np.empty(len(probabilities))
    for tree in range(len(trees.starts) - 1):
        first = trees.starts[tree]
        for node in range(first, trees.starts[tree + 1]):
            bounds[node] = (
                probabilities[node] if node == first else min(probabilities[node], bounds[node - 1])
            )
    return probabilities, bounds
