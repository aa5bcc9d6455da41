"""The draft trees of a batch, best first: what is most likely on the whole path goes into the tree, then what may follow it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled
from paceline.drafters.request_index import LONGEST, Text, extend, state_of
from paceline.drafters.sssd_evidence import REQUEST, SHARD, Pool, carry, from_request, from_store, look_ahead, new_pool
from paceline.drafters.sssd_features import (
    FEATURES,
    REQUEST_GUESS,
    STORE_GUESS,
    Counts,
    chance,
    count_tokens,
    describe_node,
    describe_token,
    hopeless,
    new_counts,
    share_inputs,
    update_state,
)

_BEGIN, _END, _REQUEST_FLOOR, _STORE_FLOOR, _DEPTH, _PARENT, _TOKEN, _TRUE = range(8)
_NODE_FIELDS = 8
_ROOM_EACH, _ROOM = 80, 512  # pointers: for each node, and besides
_CARRIED = 64  # most pointers that a node has of its parent
_ENOUGH, _SAMPLED = 50, 64  # datastore pointers at the root: enough of them, and most of one suffix
_THIN_REQUEST, _THIN_STORE, _NODE_SAMPLED = 1, 1, 12  # a node with fewer pointers looks for shorter matches
_LOOK_UPS = 1  # nodes of a tree that may search the datastore again
_LEAST_CHANCE = 0.002  # of a whole path; less is forgotten
_RATE = 0.15  # of the running means over steps


class Frontier(NamedTuple):
    """Children that wait to be taken into the tree.

    Attributes:
        edges: [room, 2] parent node (0 = root) and token. chances: [room, 2] given the parent, and of the whole path.
    """

    edges: NDArray[np.int64]
    chances: NDArray[np.float64]


class Tree(NamedTuple):
    """One draft tree as it grows; node 0 is the root.

    Attributes:
        nodes: [1 + most, _NODE_FIELDS] range of pointers, lengths searched down to, depth, parent, token, whether all is true.
        chances: [1 + most, 2] as of the frontier.
    """

    nodes: NDArray[np.int64]
    chances: NDArray[np.float64]


class Record(NamedTuple):
    """What the fit reads: every token offered behind a true path, and whether it was the true one.

    Attributes:
        truth: [n] tokens that follow; empty = nothing is recorded.
        inputs: [room, len(FEATURES)]. labels: [room]; used: [1] rows filled.
    """

    truth: NDArray[np.int64]
    inputs: NDArray[np.float32]
    labels: NDArray[np.float32]
    used: NDArray[np.int64]


@compiled
def no_record() -> Record:
    """Nothing to record."""
    return Record(
        np.empty(0, dtype=np.int64),
        np.empty((0, len(FEATURES)), dtype=np.float32),
        np.empty(0, dtype=np.float32),
        np.zeros(1, dtype=np.int64),
    )


@compiled
def draft_batch(
    weights: NDArray[np.float32],
    record: Record,
    rows: NDArray[np.int64],
    fresh: NDArray[np.int64],
    offsets: NDArray[np.int64],
    table: NDArray[np.int64],
    limits: NDArray[np.int64],
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    chances: NDArray[np.float64],
    sizes: NDArray[np.int64],
) -> int:
    """Append the fresh tokens to each request of a batch and guess how it goes on.

    Args:
        weights: [WEIGHTS] of the calibration.
        rows: [batch, COLUMNS] of `RequestIndex`, with room. fresh, offsets: [total], [batch + 1] new tokens of request b.
        table: [shards, ...] of a snapshot; no rows = no datastore.
        limits: [batch, 2] most nodes, and most levels.
        tokens, parents, chances: [batch, most] filled: the trees, as of `DraftTree`. sizes: [batch] filled: their nodes.
    Returns:
        -1, or the index of a damaged shard.
    """
    most = tokens.shape[1]
    pool = new_pool(_ROOM + _ROOM_EACH * most, most + 1, len(table))
    counts = new_counts()
    tree = Tree(np.empty((1 + most, _NODE_FIELDS), dtype=np.int64), np.empty((1 + most, 2)))
    frontier = Frontier(np.empty((256 + 64 * most, 2), dtype=np.int64), np.empty((256 + 64 * most, 2)))
    for index in range(len(rows)):
        new = fresh[offsets[index] : offsets[index + 1]]
        state = state_of(rows[index])
        update_state(state, new, _RATE)
        text = extend(rows[index], new)
        sizes[index] = 0
        if limits[index, 0] <= 0 or limits[index, 1] <= 0:
            continue
        size = _grow(text, table, pool, counts, tree, frontier, limits[index], weights, state, record)
        if size < 0:
            return -1 - size
        sizes[index] = size
        for node in range(size):
            tokens[index, node], parents[index, node] = tree.nodes[node + 1, _TOKEN], tree.nodes[node + 1, _PARENT] - 1
            chances[index, node] = tree.chances[node + 1, 0]
    return -1


@compiled
def _grow(
    text: Text,
    table: NDArray[np.int64],
    pool: Pool,
    counts: Counts,
    tree: Tree,
    frontier: Frontier,
    limits: NDArray[np.int64],
    weights: NDArray[np.float32],
    state: NDArray[np.float64],
    record: Record,
) -> int:
    """One tree of up to limits[0] nodes and limits[1] levels: its size, or -1 - the index of a damaged shard."""
    context = min(text.length, LONGEST)
    pool.tail[LONGEST - context : LONGEST] = text.ids[text.length - context : text.length]
    tree.nodes[0] = 0
    tree.nodes[0, _TRUE] = record.truth.size > 0
    tree.chances[0] = 1.0
    size, used, waiting, look_ups, node = 0, 0, 0, 0, 0
    while True:
        if tree.nodes[node, _DEPTH] < limits[1]:
            used, look_ups = _gather(text, table, pool, tree, node, context, used, look_ups)
            if used < 0:
                return used
            waiting = _offer(text, pool, counts, tree, frontier, node, waiting, weights, state, record)
        if size == limits[0] or waiting == 0:
            return size
        best = np.argmax(frontier.chances[:waiting, 1])
        size += 1
        node, parent = size, frontier.edges[best, 0]
        tree.nodes[node, _PARENT], tree.nodes[node, _TOKEN] = parent, frontier.edges[best, 1]
        depth = tree.nodes[parent, _DEPTH]
        tree.nodes[node, _DEPTH] = depth + 1
        true = tree.nodes[parent, _TRUE] > 0 and depth < record.truth.size
        tree.nodes[node, _TRUE] = true and record.truth[min(depth, record.truth.size - 1)] == frontier.edges[best, 1]
        tree.chances[node] = frontier.chances[best]
        waiting -= 1
        frontier.edges[best], frontier.chances[best] = frontier.edges[waiting], frontier.chances[waiting]
        if size == limits[0]:
            return size


@compiled
def _gather(
    text: Text, table: NDArray[np.int64], pool: Pool, tree: Tree, node: int, context: int, used: int, look_ups: int
) -> tuple[int, int]:
    """Find the pointers of a node: rows of the pool in use and searches made; (-1 - index of a damaged shard, 0)."""
    this = tree.nodes[node]
    depth, parent = this[_DEPTH], tree.nodes[this[_PARENT]]
    this[_BEGIN] = used
    above = node
    for level in range(depth - 1, -1, -1):
        pool.tail[LONGEST + level] = tree.nodes[above, _TOKEN]
        above = tree.nodes[above, _PARENT]
    result = used
    if node == 0:
        used, this[_REQUEST_FLOOR] = from_request(text, pool, used, context, 0, LONGEST + 1)
        result, this[_STORE_FLOOR] = from_store(table, pool, used, context, 0, LONGEST + 1, _ENOUGH, _SAMPLED)
    else:
        used = carry(pool, parent[_BEGIN], parent[_END], this[_TOKEN], used, _CARRIED)
        this[_REQUEST_FLOOR], this[_STORE_FLOOR] = parent[_REQUEST_FLOOR] + 1, parent[_STORE_FLOOR] + 1
        inside = 0
        for index in range(this[_BEGIN], used):
            inside += pool.pointers[index, SHARD] == REQUEST
        stored = used - this[_BEGIN] - inside
        if inside < _THIN_REQUEST:
            used, this[_REQUEST_FLOOR] = from_request(text, pool, used, context, depth, this[_REQUEST_FLOOR])
        result = used
        if stored < _THIN_STORE and look_ups < _LOOK_UPS and len(table) > 0:
            look_ups += 1
            floor = this[_STORE_FLOOR]
            result, this[_STORE_FLOOR] = from_store(table, pool, used, context, depth, floor, _THIN_STORE, _NODE_SAMPLED)
    if result < 0:
        return -1 - this[_STORE_FLOOR], 0
    this[_END] = result
    damaged = look_ahead(table, text, pool, this[_BEGIN], result, depth)
    return (-1 - damaged, 0) if damaged >= 0 else (result, look_ups)


@compiled
def _offer(
    text: Text,
    pool: Pool,
    counts: Counts,
    tree: Tree,
    frontier: Frontier,
    node: int,
    waiting: int,
    weights: NDArray[np.float32],
    state: NDArray[np.float64],
    record: Record,
) -> int:
    """Put what may follow a node on the frontier, each with its chance; how many wait now."""
    this = tree.nodes[node]
    depth = this[_DEPTH]
    different = count_tokens(pool, this[_BEGIN], this[_END], text.prompt, counts)
    request, store = describe_node(counts, different, depth, tree.chances[node, 0], state)
    share_inputs(counts.inputs, counts.shared, weights)
    if node == 0:
        state[REQUEST_GUESS] = counts.tokens[request] if request >= 0 else -1
        state[STORE_GUESS] = counts.tokens[store] if store >= 0 else -1
    for which in range(different):
        if hopeless(counts, which, different):
            continue
        describe_token(counts, which, request, text.length + depth)
        likely = chance(counts, weights)
        if this[_TRUE] > 0 and depth < record.truth.size and record.used[0] < len(record.labels):
            record.inputs[record.used[0]] = counts.inputs
            record.labels[record.used[0]] = record.truth[depth] == counts.tokens[which]
            record.used[0] += 1
        path = likely * tree.chances[node, 1]
        if path > _LEAST_CHANCE and waiting < len(frontier.edges):
            frontier.edges[waiting, 0], frontier.edges[waiting, 1] = node, counts.tokens[which]
            frontier.chances[waiting, 0], frontier.chances[waiting, 1] = likely, path
            waiting += 1
    return waiting
