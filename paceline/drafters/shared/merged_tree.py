"""Grow one draft tree best first from all sources of draft tokens.

The sources are cached distributions (Token Recycling) and the draft trees of `draft_sources`:
another drafter's tree, the tokens of the draft head, and a draft model's tree.

    drafted: 7 - 4      cached: after the root 7 (0.6) and 9 (0.3), after "7" 5 (0.8)

    The frontier starts with 7 (both): 0.7 and 9 (cached): 0.25.
    The tree takes 7; the frontier is 7-5 (cached): 0.5, 9: 0.25 and 7-4 (drafted): 0.2.
    The tree takes 7-5, and so on until it is full, or no candidate is likely enough.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from paceline.core.origin import Origin
from paceline.core.tree import IntArray
from paceline.drafters.shared.draft_sources import SOURCES, SourceTrees
from paceline.drafters.shared.recycled import ABSENT, TOP, SuccessorTable, look_up
from paceline.drafters.shared.source_calibration import (
    SourceCalibration,
    acceptance,
    count_cell,
    pair_cell,
    weighed_cell,
)
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.util.compiled import Records, compiled, kernel, record_dtype

_RECYCLED = int(Origin.RECYCLED)
_NUM_SOURCES = len(SOURCES)
_FRONTIER_PER_NODE, _FRONTIER = 2 * TOP, 64  # frontier size: per node, and constant


class TreeCandidate:
    """Describe a token on the frontier or in the tree."""

    token: int
    parent: int  # -1 = the root
    depth: int  # a child of the root has 1
    nodes: Annotated[Any, np.int64, _NUM_SOURCES]  # node in the tree of each source, or ABSENT
    cells: Annotated[Any, np.int64, _NUM_SOURCES]  # calibration cell of each source, or ABSENT
    confidence: float  # given the parent
    path_confidence: float
    known: Annotated[int, np.int32]  # number of valid tokens in `tail`
    origin: Annotated[int, np.int32]  # origin of the most confident source
    tail: Annotated[Any, np.int64, LONGEST_KEY]  # newest tokens, ending with this one


CANDIDATE = record_dtype(TreeCandidate)


class TreeQuery(NamedTuple):
    """Describe the request that a tree is grown for.

    Attributes:
        newest: Up to LONGEST_KEY newest tokens, the root last.
        max_context: Maximum number of tokens in a context of the cached distributions.
        temperature: Temperature of the request; 0 = greedy.
        max_depth: Maximum depth of the tree.
        min_path_probability: Path probability below which no candidate is taken.
    """

    newest: IntArray
    max_context: int
    temperature: float
    max_depth: int
    min_path_probability: float


class TreeInputs(NamedTuple):
    """Hold all that a tree is grown from.

    Attributes:
        table: Cached distributions.
        calibration: Acceptance rates by source.
        sources: Draft trees of the sources.
        query: The request.
    """

    table: SuccessorTable
    calibration: SourceCalibration
    sources: SourceTrees
    query: TreeQuery


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
    waiting = _offer(inputs, root[0], -1, frontier, 0, scratch)
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
            waiting = _offer(inputs, tree[size], size, frontier, waiting, scratch)
        size += 1
    return size


@kernel
def _set_root(root: Records[TreeCandidate], newest: IntArray) -> None:
    candidate = root[0]
    candidate.depth, candidate.path_confidence, candidate.known = 0, 1.0, len(newest)
    for source in range(_NUM_SOURCES):
        candidate.nodes[source] = ABSENT
    for index in range(len(newest)):
        candidate.tail[LONGEST_KEY - len(newest) + index] = newest[index]


@kernel
def _offer(
    inputs: TreeInputs,
    node: TreeCandidate,
    parent: int,
    frontier: Records[TreeCandidate],
    waiting: int,
    scratch: Any,
) -> int:
    """Put the candidates after a node on the frontier; return their new number.

    Args:
        inputs: Sources, calibration and request.
        node: Node whose children are offered.
        parent: Index of the node in the tree; -1 = the root.
        frontier: Candidates; the first `waiting` are in use.
        waiting: Number of candidates before.
        scratch: [TOP] buffer for the cached probabilities.
    """
    first = waiting
    waiting, size = _offer_cached(inputs, node, frontier, first, scratch)
    # ABSENT is also the number of the root: a node that a source lacks has no children there.
    if parent < 0 or node.nodes[0] >= 0:
        waiting = _pair(inputs, node, frontier, (first, waiting, size), scratch)
    for index in range(first, waiting):
        candidate = frontier[index]
        for source in range(1, _NUM_SOURCES):
            candidate.nodes[source], candidate.cells[source] = ABSENT, ABSENT
        candidate.confidence = acceptance(inputs.calibration, candidate.cells[0])
    for source in range(1, _NUM_SOURCES):
        if parent < 0 or node.nodes[source] >= 0:
            waiting = _weigh(inputs, source, node.nodes[source], frontier, first, waiting)
    for index in range(first, waiting):
        candidate = frontier[index]
        candidate.parent, candidate.depth = parent, node.depth + 1
        candidate.path_confidence = node.path_confidence * candidate.confidence
        candidate.known = min(node.known + 1, LONGEST_KEY)
        for step in range(LONGEST_KEY - 1):
            candidate.tail[step] = node.tail[step + 1]
        candidate.tail[LONGEST_KEY - 1] = candidate.token
    return waiting


@kernel
def _offer_cached(
    inputs: TreeInputs,
    node: TreeCandidate,
    frontier: Records[TreeCandidate],
    waiting: int,
    scratch: Any,
) -> tuple[int, int]:
    """Offer the tokens of the longest cached context.

    Returns:
        Number of waiting candidates, and tokens of the context; 0 if none is cached.
    """
    temperature = inputs.query.temperature
    index, size = look_up(inputs.table, node.tail, min(inputs.query.max_context, node.known))
    if index != ABSENT:
        entry = inputs.table.entries[index]
        _at_temperature(entry.probs, entry.size, temperature, scratch)
        for rank in range(entry.size):
            candidate = frontier[waiting]
            candidate.token, candidate.origin = entry.tokens[rank], _RECYCLED
            candidate.nodes[0] = ABSENT
            candidate.cells[0] = pair_cell(temperature > 0, size, scratch[rank], -1.0)
            waiting += 1
    return waiting, size


@kernel
def _pair(
    inputs: TreeInputs,
    node: TreeCandidate,
    frontier: Records[TreeCandidate],
    cached: tuple[int, int, int],
    scratch: Any,
) -> int:
    """Pair the children of a node in the first source with the cached tokens.

    Args:
        inputs: Sources, calibration and request.
        node: Node whose children are offered.
        frontier: Candidates.
        cached: First and last candidate by the cached distributions, and tokens of their context.
        scratch: [TOP] cached probabilities.
    Returns:
        Number of waiting candidates.
    """
    sources, sampled = inputs.sources, inputs.query.temperature > 0
    first, last, size = cached
    waiting = last
    for drafted in range(sources.starts[1]):
        if sources.parents[drafted] != node.nodes[0] or waiting == len(frontier):
            continue
        index = _index_of(frontier, first, last, sources.token_ids[drafted])
        is_new = index == ABSENT
        index = waiting if is_new else index
        probability = 0.0 if is_new else scratch[index - first]
        candidate = frontier[index]
        candidate.token, candidate.nodes[0] = sources.token_ids[drafted], drafted
        if is_new or sources.confidence[drafted] > probability:
            candidate.origin = sources.origins[drafted]
        candidate.cells[0] = pair_cell(
            sampled, 0 if is_new else size, probability, sources.confidence[drafted]
        )
        waiting += is_new
    return waiting


@kernel
def _weigh(
    inputs: TreeInputs,
    source: int,
    base: int,
    frontier: Records[TreeCandidate],
    first: int,
    waiting: int,
) -> int:
    """Weigh the children of a node by a further source.

    The candidates keep their confidence if the source has no child of the node.

    Args:
        inputs: Sources, calibration and request.
        source: Index of the source.
        base: The node in the tree of the source.
        frontier: Candidates; those of the node are at `first` to `waiting`.
        first: First candidate of the node.
        waiting: Number of waiting candidates before.
    Returns:
        Number of waiting candidates.
    """
    sources, start = inputs.sources, inputs.sources.starts[source]
    last, has_children = waiting, False
    for node in range(sources.starts[source + 1] - start):
        row = start + node
        if sources.parents[row] != base or waiting == len(frontier):
            continue
        has_children = True
        index = _index_of(frontier, first, last, sources.token_ids[row])
        if index == ABSENT:
            index = waiting
            candidate = frontier[index]
            candidate.token, candidate.confidence = sources.token_ids[row], 0.0
            for other in range(_NUM_SOURCES):
                candidate.nodes[other], candidate.cells[other] = ABSENT, ABSENT
            candidate.origin = sources.origins[row]
            waiting += 1
        candidate = frontier[index]
        candidate.nodes[source] = node
        if sources.confidence[row] >= candidate.confidence:
            candidate.origin = sources.origins[row]
    if has_children:
        _calibrate(inputs, source, frontier, first, waiting)
    return waiting


@kernel
def _calibrate(
    inputs: TreeInputs, source: int, frontier: Records[TreeCandidate], first: int, last: int
) -> None:
    """Set the confidence of candidates by the calibration cells of a weighed source."""
    sources, sampled = inputs.sources, inputs.query.temperature > 0
    for index in range(first, last):
        candidate = frontier[index]
        node = candidate.nodes[source]
        confidence = -1.0 if node == ABSENT else sources.confidence[sources.starts[source] + node]
        cell = weighed_cell(sources.tables[source], sampled, candidate.confidence, confidence)
        candidate.cells[source] = cell
        candidate.confidence = acceptance(inputs.calibration, cell)


@kernel
def _index_of(frontier: Records[TreeCandidate], first: int, last: int, token: int) -> int:
    """Return the candidate with a token, or ABSENT."""
    for index in range(first, last):
        if frontier[index].token == token:
            return index
    return ABSENT


@kernel
def _at_temperature(probs: Any, count: int, temperature: float, out: Any) -> None:
    """Rescale probabilities of temperature 1 to another temperature.

    Greedy requests keep the probabilities of temperature 1.
    """
    total = 0.0
    for index in range(count):
        out[index] = probs[index] ** (1.0 / temperature) if temperature > 0 else probs[index]
        total += out[index]
    if temperature > 0 and temperature != 1.0:
        for index in range(count):
            out[index] /= max(total, 1e-30)


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
                for source in range(_NUM_SOURCES):
                    if tree[node].cells[source] != ABSENT:
                        count_cell(calibration, tree[node].cells[source], accepted)
                if accepted:
                    passed = node
        if passed == ABSENT:
            return
        parent = passed
