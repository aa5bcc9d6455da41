"""Grow one draft tree, best first, from several sources of draft tokens.

The sources are the target's cached distributions (Token Recycling) and the draft trees of
`draft_sources`, in the order of `SOURCES`. The frontier is the set of all candidates for the next
node of the tree. A candidate's path probability is its acceptance probability times the path
probability of its parent. Acceptance probabilities are calibrated with counts of accepted tokens.
In each round, the candidate with the highest path probability joins the tree. In this example, 7-5
is a node with the token 5 and the parent 7:

    Source 1, cached distributions: 7 or 9 after the root, and 5 after 7.
    Source 2, a draft tree: 7, then 4.
    Acceptance probabilities: 0.7 for 7, 0.25 for 9, 0.8 for 7-5, and 0.3 for 7-4.

    At first, the frontier contains the candidates 7 (path probability 0.7) and 9 (0.25).
    The node 7 joins the tree. The frontier is now 7-5 (0.7 x 0.8 = 0.56), 9 (0.25) and
    7-4 (0.7 x 0.3 = 0.21).
    The node 7-5 joins next, and so on, until the tree is full or no candidate is likely enough.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.drafters.shared.candidate_offers import offer
from paceline.drafters.shared.draft_sources import SourceTrees
from paceline.drafters.shared.recycled import ABSENT, TOP, SuccessorTable
from paceline.drafters.shared.source_calibration import SourceCalibration, count_cell
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.drafters.shared.tree_candidate import (
    CANDIDATE,
    NUM_SOURCES,
    TreeCandidate,
    TreeInputs,
    TreeQueries,
    TreeQuery,
)
from paceline.util.compiled import Records, compiled, kernel

# Capacity of the frontier in candidates: an amount per node of the tree, plus a constant amount.
_FRONTIER_PER_NODE, _FRONTIER = 2 * TOP, 64


class _MergeWorkspace(NamedTuple):
    """Scratch arrays for growing a tree; all trees of a batch use the same arrays.

    Attributes:
        root: The root of the tree, as a candidate, [1].
        frontier: Candidates for the next nodes of the tree, [room].
        paths: Path probabilities of the candidates, [room], stored separately because they are
            compared most often.
        scratch: Buffer for the probabilities of one cached distribution, [TOP].
    """

    root: Records[TreeCandidate]
    frontier: Records[TreeCandidate]
    paths: NDArray[np.float64]
    scratch: NDArray[np.float64]


@compiled
def grow_trees(
    table: SuccessorTable,
    calibration: SourceCalibration,
    sources: SourceTrees,
    queries: TreeQueries,
    trees: Any,
    ends: IntArray,
) -> None:
    """Grow one tree per request in a batch, most likely nodes first.

    Args:
        table: Cached distributions.
        calibration: Measured acceptance rates by source.
        sources: Draft trees from other sources.
        queries: Requests of the batch.
        trees: Output: the nodes of all trees, one tree after the other, as records of type
            CANDIDATE. The array has room for the maximum number of nodes of every tree. Within a
            tree, path probabilities decrease.
        ends: Output: for each tree, the index in `trees` after its last node, [batch].
    """
    room = 0
    for row in range(len(ends)):
        drafted = 0
        for source in range(len(sources.bounds)):
            drafted += sources.bounds[source, 1, row] - sources.bounds[source, 0, row]
        room = max(room, _FRONTIER + _FRONTIER_PER_NODE * queries.limits[row, 1] + drafted)
    work = _MergeWorkspace(
        np.empty(1, dtype=CANDIDATE),
        np.empty(room, dtype=CANDIDATE),
        np.empty(room),
        np.empty(TOP),
    )
    end = 0
    for row in range(len(ends)):
        known, max_nodes, max_depth = queries.limits[row]
        query = TreeQuery(
            queries.max_context,
            queries.temperatures[row],
            max_depth,
            queries.min_path_probability,
        )
        if max_nodes > 0 and max_depth > 0:
            _set_root(work.root[0], queries.newest[row], known)
            inputs = TreeInputs(table, calibration, sources, row, query)
            end += _grow(inputs, work, trees[end : end + max_nodes])
        ends[row] = end


@kernel
def _grow(inputs: TreeInputs, work: _MergeWorkspace, tree: Records[TreeCandidate]) -> int:
    """Grow one tree, most likely nodes first, and return its number of nodes.

    Args:
        inputs: Sources, calibration and request.
        work: Scratch arrays, which already contain the root.
        tree: Output: nodes in order of decreasing path probability, [max_nodes].
    """
    max_nodes, query, frontier, paths = len(tree), inputs.query, work.frontier, work.paths
    waiting = _offer(inputs, work, work.root[0], -1, 0)
    size = 0
    while size < max_nodes and waiting > 0:
        best = 0
        for index in range(1, waiting):
            if paths[index] > paths[best]:
                best = index
        if paths[best] < query.min_path_probability:
            break
        tree[size] = frontier[best]
        waiting -= 1
        frontier[best], paths[best] = frontier[waiting], paths[waiting]
        if tree[size].depth < query.max_depth and size + 1 < max_nodes:
            waiting = _offer(inputs, work, tree[size], size, waiting)
        size += 1
    return size


@kernel
def _offer(
    inputs: TreeInputs, work: _MergeWorkspace, node: TreeCandidate, parent: int, waiting: int
) -> int:
    """Add candidates for the children of a node to the frontier; return its new size.

    Args:
        inputs: Sources, calibration and request.
        work: Scratch arrays, which contain the frontier.
        node: Node whose possible children are added.
        parent: Index of the node in the tree; -1 is the root.
        waiting: Number of candidates on the frontier so far.
    """
    first, frontier = waiting, work.frontier
    waiting = offer(inputs, node, parent, frontier, first, work.scratch)
    for index in range(first, waiting):
        work.paths[index] = frontier[index].path_confidence
    return waiting


@kernel
def _set_root(root: TreeCandidate, newest: IntArray, known: int) -> None:
    root.depth, root.path_confidence, root.known = 0, 1.0, known
    for source in range(NUM_SOURCES):
        root.nodes[source] = ABSENT
    for index in range(LONGEST_KEY):
        root.tail[index] = newest[index]


@kernel
def count_tree(
    calibration: SourceCalibration, tree: Records[TreeCandidate], new_tokens: IntArray
) -> None:
    """Count the accepted and rejected candidates of a verified tree.

    The function counts all children of the root and of accepted nodes. A child counts as accepted
    if the target chose the child's token, even if the child itself was not verified.

    Args:
        calibration: Counts of tried and accepted tokens, to be updated.
        tree: Tree that `grow_trees` has filled, [nodes].
        new_tokens: The target's tokens after the root.
    """
    parent = -1
    for token in new_tokens:
        passed = ABSENT
        for node in range(len(tree)):
            if tree[node].parent == parent:
                accepted = tree[node].token == token
                for source in range(NUM_SOURCES):
                    if tree[node].cells[source] != ABSENT:
                        count_cell(calibration, tree[node].cells[source], accepted)
                if accepted:
                    passed = node
        if passed == ABSENT:
            return
        parent = passed
