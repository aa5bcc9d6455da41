"""Grow a draft tree, most likely paths first, for `fusion=calibrated`.

The frontier contains the candidates for the next node, with their path probabilities. In this
example, 7-4 is the token 4 after the node 7:

1. The tree contains only the root.               frontier == []
2. Find the matches of the root, and add the
   tokens that follow them to the frontier.       frontier == [7: 0.6, 8: 0.3, 5: 0.02]
3. Move 7 to the tree, find its matches, and
   add the tokens that follow them.               frontier == [7-4: 0.54, 8: 0.3, ...]
4. Move 7-4 to the tree, and so on, until the tree is full or the frontier is empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import Query
from paceline.drafters.sssd.counting import (
    SuccessorCounts,
    count_tokens,
    guess_of_request,
    guess_of_store,
    is_hopeless,
    new_counts,
    origin_of,
)
from paceline.drafters.sssd.features import describe_node
from paceline.drafters.sssd.last_top_tokens import offer_top_tokens
from paceline.drafters.sssd.network import Network, begin_node, confidence_of, new_network
from paceline.drafters.sssd.pool import (
    PointerRange,
    Pool,
    Sources,
    copy_newest,
    new_pool,
    query_of,
)
from paceline.drafters.sssd.request_index import RequestState, last_position
from paceline.drafters.sssd.request_matches import advance, point_into_request
from paceline.drafters.sssd.settings import (
    CHILDREN_PER_NODE,
    ENOUGH_STORE,
    LONGEST,
    MAX_ADVANCED,
    MAX_NODE_LOOK_UPS,
    MIN_PATH_CONFIDENCE,
    MIN_REQUEST,
    MIN_STORE,
    NODE_SAMPLES,
    POINTERS_PER_NODE,
    ROOT_SAMPLES,
    SPARE_CHILDREN,
    SPARE_POINTERS,
)
from paceline.drafters.sssd.store_matches import StoreLimits, point_into_store
from paceline.drafters.sssd.tree import CHILD, TREE_NODE, Child, TreeNode, highest
from paceline.drafters.sssd.weak_matches import add_weak_matches, follow_copy
from paceline.util.compiled import Records, compiled, kernel


class SearchWorkspace(NamedTuple):
    """Scratch arrays for growing a draft tree; every new tree reuses them.

    Attributes:
        pool: Match pointers of all nodes: earlier positions in the texts that match a node's path.
        counts: Statistics of the tokens that follow the matches of one node.
        network: Inputs and hidden units of the network that estimates a token's confidence.
        tree: The root and the draft nodes, [1 + max_nodes].
        frontier: Candidates for the next node, followed by unused entries.
    """

    pool: Pool
    counts: SuccessorCounts
    network: Network
    tree: Records[TreeNode]
    frontier: Records[Child]


@compiled
def new_workspace(max_nodes: int, shards: int) -> SearchWorkspace:
    """Allocate scratch arrays for growing trees of up to `max_nodes` nodes."""
    room = SPARE_POINTERS + POINTERS_PER_NODE * max_nodes
    pool = new_pool(room, ROOT_SAMPLES, max_nodes + 1, shards)
    tree = np.empty(1 + max_nodes, dtype=TREE_NODE)
    frontier = np.empty(SPARE_CHILDREN + CHILDREN_PER_NODE * max_nodes, dtype=CHILD)
    return SearchWorkspace(pool, new_counts(), new_network(), tree, frontier)


@kernel
def grow(
    sources: Sources,
    workspace: SearchWorkspace,
    nodes: int,
    levels: int,
    weights: NDArray[np.float32],
    request: RequestState,
    top_tokens: NDArray[np.int64],
) -> int:
    """Grow one draft tree from the request and the datastore.

    Args:
        sources: Request and datastore to search.
        workspace: Scratch arrays, which receive the tree.
        nodes: Maximum number of draft nodes.
        levels: Maximum depth of a node below the root.
        weights: Weights of the network that estimates a token's confidence, [WEIGHTS].
        request: State of the request, which this function updates.
        top_tokens: The target's top tokens at the position of the root, most likely first, [k].
    Returns:
        The number of draft nodes, or `-1 - i` if shard i is damaged.
    """
    tree, frontier = workspace.tree, workspace.frontier
    context = copy_newest(sources.text, workspace.pool)
    root = tree[0]
    root.token = root.parent = root.depth = root.begin = root.end = root.request_size = (
        root.store_size
    ) = 0
    root.confidence = root.path_confidence = 1.0
    size, used, waiting, look_ups, node = 0, 0, 0, 0, 0
    while True:
        if tree[node].depth < levels:
            used, look_ups = _gather(sources, workspace, node, context, used, look_ups, request)
            if used < 0:
                return used
            waiting = _offer(sources, workspace, node, waiting, weights, request)
        if node == 0:
            waiting = offer_top_tokens(frontier, waiting, top_tokens)
        if size == nodes or waiting == 0:
            return size
        size += 1
        node = size
        waiting = _take(tree, frontier, node, waiting)
        if size == nodes:
            return size


@kernel
def _take(tree: Records[TreeNode], frontier: Records[Child], node: int, waiting: int) -> int:
    """Move the most likely candidate from the frontier to the tree.

    Returns:
        Number of candidates that remain on the frontier.
    """
    best = highest(frontier, waiting)
    child, new = frontier[best], tree[node]
    new.parent, new.token, new.origin = child.parent, child.token, child.origin
    new.depth = tree[child.parent].depth + 1
    new.confidence, new.path_confidence = child.confidence, child.path_confidence
    frontier[best] = frontier[waiting - 1]
    return waiting - 1


@kernel
def _gather(
    sources: Sources,
    workspace: SearchWorkspace,
    node: int,
    context: int,
    used: int,
    look_ups: int,
    request: RequestState,
) -> tuple[int, int]:
    """Find the match pointers of a node: earlier text positions that match its path.

    Args:
        sources: Request and datastore to search.
        workspace: Scratch arrays, which contain the tree.
        node: Index of the node.
        context: Number of the request's tokens in `pool.tail`.
        used: Number of pointers of earlier nodes.
        look_ups: Number of datastore searches so far for nodes below the root.
        request: State of the request.
    Returns:
        The new values of `used` and `look_ups`, or (-1 - i, 0) if shard i is damaged.
    """
    pool, tree = workspace.pool, workspace.tree
    this = tree[node]
    this.begin = used
    above = node
    for level in range(this.depth - 1, -1, -1):
        pool.tail[LONGEST + level] = tree[above].token
        above = tree[above].parent
    query = query_of(pool, context, this.depth)
    if node == 0:
        used, damaged = _point_from_root(sources, pool, this, query, used)
        if used >= 0:
            request.copy_position = follow_copy(pool, this.begin, used, request.copy_position)
    else:
        parent = tree[this.parent]
        used, damaged, look_ups = _point_from_parent(
            sources, pool, this, parent, query, used, look_ups
        )
    if used >= 0:
        used, damaged = add_weak_matches(sources, pool, this.begin, used, query)
    if used < 0:
        return -1 - damaged, 0
    this.end = used
    return used, look_ups


@kernel
def _point_from_root(
    sources: Sources, pool: Pool, root: TreeNode, query: Query, used: int
) -> tuple[int, int]:
    """Add pointers to the root's matches in the request and the datastore.

    Returns:
        (new number of pointers, -1); if a shard is damaged, (DAMAGED, index of the shard).
    """
    used, root.request_size = point_into_request(sources.text, pool, used, query, LONGEST + 1)
    limits = StoreLimits(LONGEST + 1, ENOUGH_STORE, ROOT_SAMPLES)
    used, last = point_into_store(sources.table, pool, used, query, limits)
    root.store_size = last
    return used, last if used < 0 else -1


@kernel
def _point_from_parent(
    sources: Sources,
    pool: Pool,
    this: TreeNode,
    parent: TreeNode,
    query: Query,
    used: int,
    look_ups: int,
) -> tuple[int, int, int]:
    """Inherit the parent's match pointers; if there are too few, find shorter matches.

    Returns:
        (new number of pointers, -1, number of datastore searches); if a shard is damaged, (DAMAGED,
        index of the shard, 0).
    """
    pointers = PointerRange(parent.begin, parent.end)
    used, last = advance(sources, pool, pointers, this.token, used, MAX_ADVANCED, this.depth)
    if used < 0:
        return used, last, 0
    this.request_size, this.store_size = parent.request_size + 1, parent.store_size + 1
    stored = used - this.begin - last
    if last < MIN_REQUEST:
        used, this.request_size = point_into_request(
            sources.text, pool, used, query, this.request_size
        )
    if stored < MIN_STORE and look_ups < MAX_NODE_LOOK_UPS and len(sources.table) > 0:
        look_ups += 1
        limits = StoreLimits(this.store_size, MIN_STORE, NODE_SAMPLES)
        used, last = point_into_store(sources.table, pool, used, query, limits)
        if used < 0:
            return used, last, 0
        this.store_size = last
    return used, -1, look_ups


@kernel
def _offer(
    sources: Sources,
    workspace: SearchWorkspace,
    node: int,
    waiting: int,
    weights: NDArray[np.float32],
    request: RequestState,
) -> int:
    """Add a node's possible children to the frontier, and return its new size.

    A token is a possible child if it follows one of the node's matches and is likely enough.
    """
    counts, network, frontier = workspace.counts, workspace.network, workspace.frontier
    text, this = sources.text, workspace.tree[node]
    depth = this.depth
    num_tokens = count_tokens(
        sources.table,
        workspace.pool,
        PointerRange(this.begin, this.end),
        text.prompt_length,
        request.copy_position + depth,
        counts,
    )
    describe_node(network.inputs[0], counts, depth, this.confidence, request)
    begin_node(network, weights)
    best = guess_of_request(counts, num_tokens)
    if node == 0:
        store = guess_of_store(counts, num_tokens)
        request.request_guess = counts.tokens[best].token if best >= 0 else -1
        request.store_guess = counts.tokens[store].token if store >= 0 else -1
    for which in range(num_tokens):
        if is_hopeless(counts, which, num_tokens):
            continue
        token = counts.tokens[which].token
        seen = last_position(text, token)
        confidence = confidence_of(network, counts, which, best, text.length + depth, seen, weights)
        path = confidence * this.path_confidence
        if path > MIN_PATH_CONFIDENCE and waiting < len(frontier):
            child = frontier[waiting]
            child.parent, child.token, child.origin = node, token, origin_of(counts, which)
            child.confidence, child.path_confidence = confidence, path
            waiting += 1
    return waiting
