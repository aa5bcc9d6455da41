"""Grow the tree of `fusion=calibrated` best first, by path probability.

tree = [root]                                     frontier = []
gather the pointers of the root, offer            frontier = [7: 0.6, 8: 0.3, 5: 0.02]
take 7 into the tree, gather its pointers, offer  frontier = [7-4: 0.54, 8: 0.3, 7-1: 0.03, 5: 0.02]
take 7-4, ...                                     until the tree is full or nothing waits
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import ShardRow
from paceline.drafters.sssd.counting import (
    SuccessorCounts,
    count_tokens,
    guess_of_request,
    guess_of_store,
    hopeless,
    new_counts,
    origin_of,
)
from paceline.drafters.sssd.evidence import (
    Pool,
    advance,
    copy_newest,
    new_pool,
    point_into_request,
    point_into_store,
)
from paceline.drafters.sssd.features import describe_node
from paceline.drafters.sssd.hints import add_hints, follow_copy
from paceline.drafters.sssd.network import Network, begin_node, confidence_of, new_network
from paceline.drafters.sssd.request_index import LONGEST, RequestState, RequestText, last_place
from paceline.drafters.sssd.tree import TREE_NODE, TreeNode, highest
from paceline.util.compiled import Records, compiled, kernel, record_dtype

_ROOM_EACH, _ROOM = 80, 512  # pointers: for each node, and besides
_ADVANCED = 64  # most pointers that a node has of its parent
_ENOUGH, _SAMPLED = 50, 64  # datastore pointers at the root: enough of them, and most of one suffix
# a node with fewer pointers looks for shorter matches
_THIN_REQUEST, _THIN_STORE, _NODE_SAMPLED = (1, 1, 12)
_LOOK_UPS = 1  # nodes of a tree that may search the datastore again
_LEAST_CONFIDENCE = 0.002  # of a whole path; less is forgotten
_WAITING_EACH, _WAITING = 64, 256  # children on the frontier: for each node, and besides


class Child:
    """Describe a token on the frontier."""

    parent: Annotated[int, np.int32]  # node of the tree, 0 = root
    origin: Annotated[int, np.int32]  # of `Origin`
    token: int
    confidence: float  # given the parent
    path_confidence: float  # of the whole path


CHILD = record_dtype(Child)


class Workspace(NamedTuple):
    """Hold the scratch arrays for one tree after the other.

    Attributes:
        pool: Pointers of the tree.
        counts: Counts of one node.
        network: Values of the network.
        tree: [1 + max_nodes].
        frontier: [room].
    """

    pool: Pool
    counts: SuccessorCounts
    network: Network
    tree: Records[TreeNode]
    frontier: Records[Child]


@compiled
def new_workspace(most: int, shards: int) -> Workspace:
    """Return scratch arrays for trees of up to `most` nodes, one at a time."""
    pool = new_pool(_ROOM + _ROOM_EACH * most, _SAMPLED, most + 1, shards)
    tree, frontier = (
        np.empty(1 + most, dtype=TREE_NODE),
        np.empty(_WAITING + _WAITING_EACH * most, dtype=CHILD),
    )
    return Workspace(pool, new_counts(), new_network(), tree, frontier)


@kernel
def grow(
    text: RequestText,
    table: Records[ShardRow],
    workspace: Workspace,
    nodes: int,
    levels: int,
    weights: NDArray[np.float32],
    request: RequestState,
) -> int:
    """Grow one tree; return its size, or -1 - the index of a damaged shard."""
    tree, frontier = workspace.tree, workspace.frontier
    context = copy_newest(text, workspace.pool)
    root = tree[0]
    root.token = root.parent = root.depth = root.begin = root.end = root.request_size = (
        root.store_size
    ) = 0
    root.confidence = root.path_confidence = 1.0
    size, used, waiting, look_ups, node = 0, 0, 0, 0, 0
    while True:
        if tree[node].depth < levels:
            used, look_ups = _gather(
                text, table, workspace.pool, tree, node, context, used, look_ups, request
            )
            if used < 0:
                return used
            waiting = _offer(text, table, workspace, node, waiting, weights, request)
        if size == nodes or waiting == 0:
            return size
        size += 1
        node = size
        waiting = _take(tree, frontier, node, waiting)
        if size == nodes:
            return size


@kernel
def _take(tree: Records[TreeNode], frontier: Records[Child], node: int, waiting: int) -> int:
    """Move the best child from the frontier to the tree; return the frontier's size."""
    best = highest(frontier, waiting)
    child, new = frontier[best], tree[node]
    parent = tree[child.parent]
    depth = parent.depth
    new.parent, new.token, new.depth, new.origin = (
        child.parent,
        child.token,
        depth + 1,
        child.origin,
    )
    new.confidence, new.path_confidence = child.confidence, child.path_confidence
    frontier[best] = frontier[waiting - 1]
    return waiting - 1


@kernel
def _gather(
    text: RequestText,
    table: Records[ShardRow],
    pool: Pool,
    tree: Records[TreeNode],
    node: int,
    context: int,
    used: int,
    look_ups: int,
    request: RequestState,
) -> tuple[int, int]:
    """Find the pointers of a node.

    Returns:
        Pointers in use and searches made; or (-1 - index of a damaged shard, 0).
    """
    this = tree[node]
    depth, parent = this.depth, tree[this.parent]
    this.begin = used
    above = node
    for level in range(depth - 1, -1, -1):
        pool.tail[LONGEST + level] = tree[above].token
        above = tree[above].parent
    if node == 0:
        used, this.request_size = point_into_request(text, pool, used, context, 0, LONGEST + 1)
        used, last = point_into_store(table, pool, used, context, 0, LONGEST + 1, _ENOUGH, _SAMPLED)
        this.store_size = last
    else:
        used, last = advance(
            table, text, pool, parent.begin, parent.end, this.token, used, _ADVANCED, depth
        )
        this.request_size, this.store_size = parent.request_size + 1, parent.store_size + 1
        stored = used - this.begin - last
        if used >= 0 and last < _THIN_REQUEST:
            used, this.request_size = point_into_request(
                text, pool, used, context, depth, this.request_size
            )
        if used >= 0 and stored < _THIN_STORE and look_ups < _LOOK_UPS and len(table) > 0:
            look_ups += 1
            used, last = point_into_store(
                table, pool, used, context, depth, this.store_size, _THIN_STORE, _NODE_SAMPLED
            )
            this.store_size = last
    if used >= 0:
        if node == 0:
            request.copy_place = follow_copy(pool, this.begin, used, request.copy_place)
        used, last = add_hints(table, text, pool, this.begin, used, context, depth)
    if used < 0:
        return -1 - last, 0
    this.end = used
    return used, look_ups


@kernel
def _offer(
    text: RequestText,
    table: Records[ShardRow],
    workspace: Workspace,
    node: int,
    waiting: int,
    weights: NDArray[np.float32],
    request: RequestState,
) -> int:
    """Add the children of a node to the frontier; return its size."""
    pool, counts, network, frontier = (
        workspace.pool,
        workspace.counts,
        workspace.network,
        workspace.frontier,
    )
    this = workspace.tree[node]
    depth = this.depth
    different = count_tokens(
        table, pool, this.begin, this.end, text.prompt_length, request.copy_place + depth, counts
    )
    describe_node(network.inputs[0], counts, depth, this.confidence, request)
    begin_node(network, weights)
    best = guess_of_request(counts, different)
    if node == 0:
        store = guess_of_store(counts, different)
        request.request_guess = counts.tokens[best].token if best >= 0 else -1
        request.store_guess = counts.tokens[store].token if store >= 0 else -1
    for which in range(different):
        if hopeless(counts, which, different):
            continue
        token = counts.tokens[which].token
        seen = last_place(text, token)
        confidence = confidence_of(network, counts, which, best, text.length + depth, seen, weights)
        path = confidence * this.path_confidence
        if path > _LEAST_CONFIDENCE and waiting < len(frontier):
            child = frontier[waiting]
            child.parent, child.token, child.confidence, child.path_confidence = (
                node,
                token,
                confidence,
                path,
            )
            child.origin = origin_of(counts, which)
            waiting += 1
    return waiting
