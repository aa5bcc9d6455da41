"""The draft trees of a batch, best first: what is most likely on the whole path goes into the tree, then what may follow it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled, kernel, take_number
from paceline.drafters.request_index import (
    JOB_BEGIN,
    JOB_END,
    JOB_LEVELS,
    JOB_NODES,
    JOB_ROW,
    JOB_SIZE,
    LONGEST,
    Text,
    extend,
    last_place,
    row_at,
    state_of,
)
from paceline.drafters.sssd_evidence import Pool, carry, from_request, from_store, highest, new_pool, show_newest
from paceline.drafters.sssd_features import (
    FEATURES,
    LINE,
    REQUEST_GUESS,
    STORE_GUESS,
    Counts,
    chance_of,
    count_tokens,
    describe_node,
    guess_of_request,
    guess_of_store,
    hopeless,
    new_counts,
    share_inputs,
    update_state,
)
from paceline.drafters.sssd_hints import add_hints, follow

_BEGIN, _END, _REQUEST_FLOOR, _STORE_FLOOR, _DEPTH, _PARENT, _TOKEN, _TRUE = range(8)
_NODE_FIELDS = 8
_ROOM_EACH, _ROOM = 80, 512  # pointers: for each node, and besides
_CARRIED = 64  # most pointers that a node has of its parent
_ENOUGH, _SAMPLED = 50, 64  # datastore pointers at the root: enough of them, and most of one suffix
_THIN_REQUEST, _THIN_STORE, _NODE_SAMPLED = 1, 1, 12  # a node with fewer pointers looks for shorter matches
_LOOK_UPS = 1  # nodes of a tree that may search the datastore again
_LEAST_CHANCE = 0.002  # of a whole path; less is forgotten
_WAITING_EACH, _WAITING = 64, 256  # children on the frontier: for each node, and besides
_RATE = 0.15  # of the running means over steps


class Frontier(NamedTuple):
    """Children that wait to be taken into the tree.

    Attributes:
        edges: [room, 2] parent node (0 = root) and token. chances: [room] given the parent; paths: [room] of the whole path.
    """

    edges: NDArray[np.int64]
    chances: NDArray[np.float64]
    paths: NDArray[np.float64]


class Tree(NamedTuple):
    """One draft tree as it grows; node 0 is the root.

    Attributes:
        nodes: [1 + most, _NODE_FIELDS] range of pointers, lengths searched down to, depth, parent, token, whether all is true.
        chances, paths: [1 + most] as of the frontier.
    """

    nodes: NDArray[np.int64]
    chances: NDArray[np.float64]
    paths: NDArray[np.float64]


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


_NO_INPUTS = np.empty((0, len(FEATURES)), dtype=np.float32)
NO_RECORD = Record(np.empty(0, dtype=np.int64), _NO_INPUTS, np.empty(0, dtype=np.float32), np.zeros(1, dtype=np.int64))


@compiled
def draft_batch(
    weights: NDArray[np.float32],
    record: Record,
    jobs: NDArray[np.int64],
    fresh: NDArray[np.int64],
    table: NDArray[np.int64],
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    chances: NDArray[np.float64],
    taken: NDArray[np.int64],
) -> int:
    """Append the fresh tokens to each request of a batch and guess how it goes on.

    Any number of threads may work on one batch at a time.

    Args:
        weights: [WEIGHTS] of the calibration.
        jobs: [batch, JOB_COLUMNS] address of the row of a `RequestIndex` with room, range of its new tokens in `fresh`, most
            nodes, and most levels; filled: how many nodes were drafted.
        table: [shards, ...] of a snapshot; no rows = no datastore.
        tokens, parents, chances: [batch, most] filled: the trees, as of `DraftTree`.
        taken: [1] requests that some thread has taken so far; 0 at first.
    Returns:
        -1, or the index of a damaged shard.
    """
    most = tokens.shape[1]
    pool = new_pool(_ROOM + _ROOM_EACH * most, _SAMPLED, most + 1, len(table))
    counts = new_counts()
    tree = Tree(np.empty((1 + most, _NODE_FIELDS), dtype=np.int64), np.empty(1 + most), np.empty(1 + most))
    room = _WAITING + _WAITING_EACH * most
    frontier = Frontier(np.empty((room, 2), dtype=np.int64), np.empty(room), np.empty(room))
    while True:
        index = take_number(taken.ctypes.data)
        if index >= len(jobs):
            return -1
        job, row = jobs[index], row_at(jobs[index, JOB_ROW])
        new = fresh[job[JOB_BEGIN] : job[JOB_END]]
        state = state_of(row)
        update_state(state, new, _RATE)
        text = extend(row, new)
        job[JOB_SIZE] = 0
        if job[JOB_NODES] <= 0 or job[JOB_LEVELS] <= 0:
            continue
        size = _grow(text, table, pool, counts, tree, frontier, job[JOB_NODES], job[JOB_LEVELS], weights, state, record)
        if size < 0:
            return -1 - size
        job[JOB_SIZE] = size
        for node in range(size):
            tokens[index, node], parents[index, node] = tree.nodes[node + 1, _TOKEN], tree.nodes[node + 1, _PARENT] - 1
            chances[index, node] = tree.chances[node + 1]


@kernel
def _grow(
    text: Text,
    table: NDArray[np.int64],
    pool: Pool,
    counts: Counts,
    tree: Tree,
    frontier: Frontier,
    nodes: int,
    levels: int,
    weights: NDArray[np.float32],
    state: NDArray[np.float64],
    record: Record,
) -> int:
    """One tree of up to `nodes` nodes and `levels` levels: its size, or -1 - the index of a damaged shard."""
    context = show_newest(text, pool)
    tree.nodes[0] = 0
    tree.nodes[0, _TRUE] = record.truth.size > 0
    tree.chances[0] = tree.paths[0] = 1.0
    size, used, waiting, look_ups, node = 0, 0, 0, 0, 0
    while True:
        if tree.nodes[node, _DEPTH] < levels:
            used, look_ups = _gather(text, table, pool, tree, node, context, used, look_ups, state)
            if used < 0:
                return used
            waiting = _offer(text, pool, counts, tree, frontier, node, waiting, weights, state, record)
        if size == nodes or waiting == 0:
            return size
        size += 1
        node = size
        waiting = _take(tree, frontier, node, waiting, record.truth)
        if size == nodes:
            return size


@kernel
def _take(tree: Tree, frontier: Frontier, node: int, waiting: int, truth: NDArray[np.int64]) -> int:
    """Make the best child on the frontier a node of the tree; how many wait now."""
    best = highest(frontier.paths, waiting)
    parent, token = frontier.edges[best, 0], frontier.edges[best, 1]
    depth = tree.nodes[parent, _DEPTH]
    tree.nodes[node, _PARENT], tree.nodes[node, _TOKEN], tree.nodes[node, _DEPTH] = parent, token, depth + 1
    true = tree.nodes[parent, _TRUE] > 0 and depth < truth.size
    tree.nodes[node, _TRUE] = true and truth[min(depth, truth.size - 1)] == token
    tree.chances[node], tree.paths[node] = frontier.chances[best], frontier.paths[best]
    waiting -= 1
    frontier.edges[best, 0], frontier.edges[best, 1] = frontier.edges[waiting, 0], frontier.edges[waiting, 1]
    frontier.chances[best], frontier.paths[best] = frontier.chances[waiting], frontier.paths[waiting]
    return waiting


@kernel
def _gather(
    text: Text,
    table: NDArray[np.int64],
    pool: Pool,
    tree: Tree,
    node: int,
    context: int,
    used: int,
    look_ups: int,
    state: NDArray[np.float64],
) -> tuple[int, int]:
    """Find the pointers of a node: rows of the pool in use and searches made; (-1 - index of a damaged shard, 0)."""
    this = tree.nodes[node]
    depth, parent = this[_DEPTH], tree.nodes[this[_PARENT]]
    this[_BEGIN] = used
    above = node
    for level in range(depth - 1, -1, -1):
        pool.tail[LONGEST + level] = tree.nodes[above, _TOKEN]
        above = tree.nodes[above, _PARENT]
    if node == 0:
        used, this[_REQUEST_FLOOR] = from_request(text, pool, used, context, 0, LONGEST + 1)
        used, last = from_store(table, pool, used, context, 0, LONGEST + 1, _ENOUGH, _SAMPLED)
        this[_STORE_FLOOR] = last
    else:
        used, last = carry(table, text, pool, parent[_BEGIN], parent[_END], this[_TOKEN], used, _CARRIED, depth)
        this[_REQUEST_FLOOR], this[_STORE_FLOOR] = parent[_REQUEST_FLOOR] + 1, parent[_STORE_FLOOR] + 1
        stored = used - this[_BEGIN] - last
        if used >= 0 and last < _THIN_REQUEST:
            used, this[_REQUEST_FLOOR] = from_request(text, pool, used, context, depth, this[_REQUEST_FLOOR])
        if used >= 0 and stored < _THIN_STORE and look_ups < _LOOK_UPS and len(table) > 0:
            look_ups += 1
            used, last = from_store(table, pool, used, context, depth, this[_STORE_FLOOR], _THIN_STORE, _NODE_SAMPLED)
            this[_STORE_FLOOR] = last
    if used >= 0:
        if node == 0:
            state[LINE] = follow(pool, this[_BEGIN], used, int(state[LINE]))
        used, last = add_hints(table, text, pool, this[_BEGIN], used, context, depth)
    if used < 0:
        return -1 - last, 0
    this[_END] = used
    return used, look_ups


@kernel
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
    different = count_tokens(pool, this[_BEGIN], this[_END], text.prompt, int(state[LINE]) + depth, counts)
    describe_node(counts, depth, tree.chances[node], state)
    share_inputs(counts.inputs, counts.shared, weights)
    request = guess_of_request(counts, different)
    if node == 0:
        store = guess_of_store(counts, different)
        state[REQUEST_GUESS] = counts.tokens[request] if request >= 0 else -1
        state[STORE_GUESS] = counts.tokens[store] if store >= 0 else -1
    recorded = this[_TRUE] > 0 and depth < record.truth.size
    for which in range(different):
        if hopeless(counts, which, different):
            continue
        seen = last_place(text, counts.tokens[which])
        likely = chance_of(counts, which, request, text.length + depth, seen, weights, recorded)
        if recorded and record.used[0] < len(record.labels):
            for index in range(len(FEATURES)):
                record.inputs[record.used[0], index] = counts.inputs[index]
            record.labels[record.used[0]] = record.truth[depth] == counts.tokens[which]
            record.used[0] += 1
        path = likely * tree.paths[node]
        if path > _LEAST_CHANCE and waiting < len(frontier.paths):
            frontier.edges[waiting, 0], frontier.edges[waiting, 1] = node, counts.tokens[which]
            frontier.chances[waiting], frontier.paths[waiting] = likely, path
            waiting += 1
    return waiting
