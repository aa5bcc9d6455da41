"""Grow one draft tree best first from all sources of draft tokens.

The sources are cached distributions (Token Recycling) and the draft trees of `draft_sources` (in
the order of `SOURCES`).

    drafted: 7 - 4      cached: after the root 7 (0.6) and 9 (0.3), after "7" 5 (0.8)

    The frontier starts with 7 (both): 0.7 and 9 (cached): 0.25.
    The tree takes 7; the frontier is 7-5 (cached): 0.5, 9: 0.25 and 7-4 (drafted): 0.2.
    The tree takes 7-5, and so on until it is full, or no candidate is likely enough.
"""

from __future__ import annotations

import numpy as np

from paceline.core.tree import IntArray
from paceline.drafters.shared.candidate_offers import offer
from paceline.drafters.shared.recycled import ABSENT, TOP
from paceline.drafters.shared.source_calibration import SourceCalibration, count_cell
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.drafters.shared.tree_candidate import (
    CANDIDATE,
    NUM_SOURCES,
    TreeCandidate,
    TreeInputs,
)
from paceline.util.compiled import Records, compiled, kernel

_FRONTIER_PER_NODE, _FRONTIER = 2 * TOP, 64  # frontier size: per node, and constant


@compiled
def grow(inputs: TreeInputs, tree: Records[TreeCandidate]) -> int:
    """Grow a tree best first and return its size.

    Args:
        inputs: Sources, calibration and request.
        tree: [max_nodes], filled with falling path probabilities.
    """
    max_nodes, query = len(tree), inputs.query
    num_drafted = len(inputs.sources.token_ids)
    frontier = np.empty(_FRONTIER + _FRONTIER_PER_NODE * max_nodes + num_drafted, dtype=CANDIDATE)
    scratch = np.empty(TOP)
    root = np.empty(1, dtype=CANDIDATE)
    _set_root(root, query.newest)
    waiting = offer(inputs, root[0], -1, frontier, 0, scratch)
    size = 0
    while size < max_nodes and waiting > 0:
        best = 0
        for index in range(1, waiting):
            if frontier[index].path_confidence > frontier[best].path_confidence:
                best = index
        if frontier[best].path_confidence < query.min_path_probability:
            break
        tree[size] = frontier[best]
        waiting -= 1
        frontier[best] = frontier[waiting]
        if tree[size].depth < query.max_depth and size + 1 < max_nodes:
            waiting = offer(inputs, tree[size], size, frontier, waiting, scratch)
        size += 1
    return size


@kernel
def _set_root(root: Records[TreeCandidate], newest: IntArray) -> None:
    candidate = root[0]
    candidate.depth, candidate.path_confidence, candidate.known = 0, 1.0, len(newest)
    for source in range(NUM_SOURCES):
        candidate.nodes[source] = ABSENT
    for index in range(len(newest)):
        candidate.tail[LONGEST_KEY - len(newest) + index] = newest[index]


@compiled
def learn(
    calibration: SourceCalibration, tree: Records[TreeCandidate], size: int, new_tokens: IntArray
) -> None:
    """Count the candidates that the target has decided.

    These are all children of the nodes it passed, whether the engine processed them or not.

    Args:
        calibration: Acceptance rates by source.
        tree: The tree that `grow` returned.
        size: Number of its nodes.
        new_tokens: Tokens of the target after the root.
    """
    parent = -1
    for token in new_tokens:
        passed = ABSENT
        for node in range(size):
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
