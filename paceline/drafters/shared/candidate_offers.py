"""Add the possible children of a node in the merged draft tree to the frontier.

The first candidates come from the cached distributions and from retrieval, which are calibrated
together. Every other source, in the order of `SOURCES`, then adjusts the confidences of the
existing candidates, and adds its own candidates.
"""

from __future__ import annotations

from typing import Any

from paceline.core.origin import Origin
from paceline.drafters.shared.recycled import ABSENT, look_up, size_of
from paceline.drafters.shared.source_calibration import acceptance, pair_cell, weighed_cell
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.drafters.shared.tree_candidate import NUM_SOURCES, TreeCandidate, TreeInputs
from paceline.util.compiled import Records, kernel

_RECYCLED = int(Origin.RECYCLED)


@kernel
def offer(
    inputs: TreeInputs,
    node: TreeCandidate,
    parent: int,
    frontier: Records[TreeCandidate],
    waiting: int,
    scratch: Any,
) -> int:
    """Add a node's possible children to the frontier; return the frontier's new size.

    Args:
        inputs: Sources, calibration and request.
        node: Node whose possible children are added.
        parent: Index of the node in the tree; -1 means the root.
        frontier: Candidates for the next nodes; only the first `waiting` entries are valid.
        waiting: Number of candidates on the frontier so far.
        scratch: Buffer for the probabilities of one cached distribution, [TOP].
    """
    first = waiting
    waiting, size = _offer_cached(inputs, node, frontier, first, scratch)
    # The value ABSENT is also the index of the root. A node that is absent from a source's tree has
    # no children in that tree.
    if parent < 0 or node.nodes[0] >= 0:
        waiting = _pair(inputs, node, frontier, (first, waiting, size), scratch)
    for index in range(first, waiting):
        candidate = frontier[index]
        for source in range(1, NUM_SOURCES):
            candidate.nodes[source], candidate.cells[source] = ABSENT, ABSENT
        candidate.confidence = acceptance(inputs.calibration, candidate.cells[0])
    for source in range(1, NUM_SOURCES):
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
    """Add the cached next tokens after a node to the frontier.

    The tokens come from the cached distribution of the node's longest known context.

    Args:
        inputs: Sources, calibration and request.
        node: Node whose possible children are added.
        frontier: Candidates for the next nodes; only the first `waiting` entries are valid.
        waiting: Number of candidates on the frontier so far.
        scratch: Output: probabilities of the added tokens at the request's temperature, [TOP].
    Returns:
        Number of candidates on the frontier, and length of the cached context (0 if none is
        cached).
    """
    temperature = inputs.query.temperature
    index, size = look_up(inputs.table, node.tail, min(inputs.query.max_context, node.known))
    if index != ABSENT:
        entry = inputs.table.entries[index]
        num_tokens = size_of(entry)
        _at_temperature(entry.probs, num_tokens, temperature, scratch)
        for rank in range(num_tokens):
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
    """Merge retrieved tokens with the candidates from the cached distributions.

    A token in both sources becomes one candidate.

    Args:
        inputs: Sources, calibration and request.
        node: Node whose possible children are added.
        frontier: Candidates for the next nodes of the tree.
        cached: Index of the first candidate from the cached distributions, index after the last
            one, and context length.
        scratch: Probabilities of the candidates from the cached distribution, [TOP].
    Returns:
        Number of candidates on the frontier.
    """
    sources, sampled = inputs.sources, inputs.query.temperature > 0
    begin, end = sources.bounds[0, 0, inputs.row], sources.bounds[0, 1, inputs.row]
    first, last, size = cached
    waiting = last
    for index_of_node in range(begin, end):
        drafted = sources.paired[index_of_node]
        if drafted.parent != node.nodes[0] or waiting == len(frontier):
            continue
        index = _index_of(frontier, first, last, drafted.token)
        is_new = index == ABSENT
        index = waiting if is_new else index
        probability = 0.0 if is_new else scratch[index - first]
        candidate = frontier[index]
        candidate.token, candidate.nodes[0] = drafted.token, index_of_node - begin
        if is_new or drafted.confidence > probability:
            candidate.origin = drafted.origin
        candidate.cells[0] = pair_cell(
            sampled, 0 if is_new else size, probability, drafted.confidence
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
    """Adjust the confidences of a node's candidates, using one further source.

    Tokens that only this source proposes are added as candidates. If the node has no children in
    the source's tree, nothing changes.

    Args:
        inputs: Sources, calibration and request.
        source: Index of the source.
        base: Index of the node in the source's tree; -1 means the root.
        frontier: Candidates for the next nodes. Indices `first` to `waiting` - 1 are the node's
            candidates.
        first: Index of the node's first candidate.
        waiting: Number of candidates on the frontier so far.
    Returns:
        Number of candidates on the frontier.
    """
    sources = inputs.sources
    begin, end = sources.bounds[source, 0, inputs.row], sources.bounds[source, 1, inputs.row]
    last, has_children = waiting, False
    for index_of_node in range(begin, end):
        drafted = sources.weighed[index_of_node]
        if drafted.parent != base or waiting == len(frontier):
            continue
        has_children = True
        index = _index_of(frontier, first, last, drafted.token)
        if index == ABSENT:
            index = waiting
            candidate = frontier[index]
            candidate.token, candidate.confidence = drafted.token, 0.0
            for other in range(NUM_SOURCES):
                candidate.nodes[other], candidate.cells[other] = ABSENT, ABSENT
            candidate.origin = drafted.origin
            waiting += 1
        candidate = frontier[index]
        candidate.nodes[source] = index_of_node - begin
        if drafted.confidence >= candidate.confidence:
            candidate.origin = drafted.origin
    if has_children:
        _calibrate(inputs, source, frontier, first, waiting)
    return waiting


@kernel
def _calibrate(
    inputs: TreeInputs, source: int, frontier: Records[TreeCandidate], first: int, last: int
) -> None:
    """Set each candidate's confidence to the measured acceptance rate of its cell.

    The cell of a candidate depends on two numbers: its confidence so far, which comes from the
    earlier sources, and the confidence that this source assigns to it (`weighed_cell`).

    Args:
        inputs: Sources, calibration and request.
        source: Index of the source that adjusts the confidences.
        frontier: Candidates for the next nodes.
        first: Index of the first candidate to adjust.
        last: Index after the last candidate to adjust.
    """
    sources, sampled = inputs.sources, inputs.query.temperature > 0
    begin = sources.bounds[source, 0, inputs.row]
    for index in range(first, last):
        candidate = frontier[index]
        node = candidate.nodes[source]
        confidence = -1.0 if node == ABSENT else sources.weighed[begin + node].confidence
        cell = weighed_cell(sources.tables[source], sampled, candidate.confidence, confidence)
        candidate.cells[source] = cell
        candidate.confidence = acceptance(inputs.calibration, cell)


@kernel
def _index_of(frontier: Records[TreeCandidate], first: int, last: int, token: int) -> int:
    """Return the index of the candidate with the given token, or ABSENT.

    Only the candidates `first` to `last` - 1 of the frontier are searched.
    """
    for index in range(first, last):
        if frontier[index].token == token:
            return index
    return ABSENT


@kernel
def _at_temperature(probs: Any, count: int, temperature: float, out: Any) -> None:
    """Convert probabilities at temperature 1 to probabilities at another temperature.

    For greedy requests, the probabilities do not change.

    Args:
        probs: Probabilities at temperature 1.
        count: Number of probabilities to convert.
        temperature: New temperature; 0 means greedy.
        out: Output: probabilities at the new temperature.
    """
    total = 0.0
    for index in range(count):
        out[index] = probs[index] ** (1.0 / temperature) if temperature > 0 else probs[index]
        total += out[index]
    if temperature > 0 and temperature != 1.0:
        for index in range(count):
            out[index] /= max(total, 1e-30)
