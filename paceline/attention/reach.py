"""Compute, without a mask, which keys each query of a ragged batch sees.

A pending token sees the text up to and including itself. A node sees the text, the node's ancestors
and itself. Sliding windows and chunked attention hide keys that are too far back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.backend.attention_metadata import RUN, KeyRun, VisibleRanges
from paceline.core.tree import IntArray
from paceline.util.compiled import Records, compiled, kernel


class Reach(NamedTuple):
    """Limits on how far back one type of layer attends, in text positions.

    Attributes:
        window: Size of the sliding window, including the query's own position; None means no
            window.
        chunk: Number of positions per chunk in chunked attention; None means no chunks.
    """

    window: int | None = None
    chunk: int | None = None

    @property
    def is_limited(self) -> bool:
        """True if a layer does not see the whole text."""
        return bool(self.window or self.chunk)


UNLIMITED = Reach()  # full attention


class PackedRows(NamedTuple):
    """Pending tokens and tree nodes of a ragged batch.

    Each row contributes queries in this order: pending tokens, tree nodes, and padding. Padding
    sees no keys.

    Attributes:
        starts: Index of the first query of each row, [rows + 1].
        cached: Number of tokens in the cache before the forward pass, [rows].
        pending: Number of pending tokens, [rows].
        parents: Parent of each node within its tree, [nodes]; -1 if the parent is the root.
        depths: Depth of each node, [nodes]; 1 for a child of the root.
        ranks: Index of each node after the nodes of its tree are sorted by depth, [nodes].
        first_nodes: Index of the first node of each row, [rows + 1].
    """

    starts: IntArray
    cached: IntArray
    pending: IntArray
    parents: IntArray
    depths: IntArray
    ranks: IntArray
    first_nodes: IntArray


def visible_in_trees(rows: PackedRows, reach: Reach = UNLIMITED) -> VisibleRanges:
    """Return the keys visible to the queries of a ragged batch.

    Args:
        rows: Rows of the batch.
        reach: How far back the layers attend.
    """
    runs, begin = _runs(tuple(rows), reach.window or 0, reach.chunk or 0)
    return VisibleRanges(runs, begin, rows.starts, int(np.diff(rows.starts).max()), packed=True)


@compiled
def _runs(
    packed: tuple[IntArray, ...], window: int, chunk: int
) -> tuple[NDArray[np.void], IntArray]:
    """Return all runs of visible keys, and the index of each query's first run.

    A run is a range of consecutive visible keys.
    """
    starts, cached, pending, parents, depths, ranks, nodes = packed
    rows = len(cached)
    begin = np.empty(starts[rows] + 1, dtype=np.int64)
    begin[0] = 0
    max_runs = 0  # at most one run of text per query, and one run per node on its path
    for row in range(rows):
        max_runs += pending[row]
        for node in range(nodes[row], nodes[row + 1]):
            max_runs += depths[node] + 1
    runs = np.empty(max_runs, dtype=RUN)
    count = 0
    for row in range(rows):
        text = cached[row] + pending[row]
        num_queries = pending[row] + nodes[row + 1] - nodes[row]
        for column in range(starts[row + 1] - starts[row]):
            query = starts[row] + column
            if column < pending[row]:
                position = cached[row] + column
                count = _add(
                    runs, begin[query], count, _first_seen(position, window, chunk), position + 1
                )
            elif column < num_queries:
                node = nodes[row] + column - pending[row]
                low = _first_seen(text - 1 + depths[node], window, chunk)
                if low < text:
                    count = _add(runs, begin[query], count, low, text)
                first = count
                # From the node to the root, positions fall by one per step.
                while node >= nodes[row] and text - 1 + depths[node] >= low:
                    count += 1
                    runs[count - 1].start = text + ranks[node]  # `_join` sets `stop` and `rank`
                    node = nodes[row] + parents[node] if parents[node] >= 0 else -1
                count = _join(runs, begin[query], first, count)
            begin[query + 1] = count
    return runs[:count], begin


@kernel
def _first_seen(position: int, window: int, chunk: int) -> int:
    if window:
        return max(0, position - window + 1)
    return position // chunk * chunk if chunk else 0


@kernel
def _add(runs: Records[KeyRun], begin: int, count: int, start: int, stop: int) -> int:
    """Append keys `start` to `stop` - 1 as a run; return the new number of runs.

    A run is a range of consecutive visible keys.
    """
    runs[count].start = start
    runs[count].stop = stop
    runs[count].rank = (
        0 if count == begin else runs[count - 1].rank + runs[count - 1].stop - runs[count - 1].start
    )
    return count + 1


@kernel
def _join(runs: Records[KeyRun], begin: int, first: int, count: int) -> int:
    """Merge a query's single keys into runs of consecutive keys.

    The function sorts the single keys in ascending order. It then joins each key with the run
    before it if the run ends directly before the key. This run may also be the query's run of text.

    Args:
        runs: Runs of all queries so far. Runs `first` to `count` - 1 are single keys of the last
            query, in descending order. Only their field `start` is set.
        begin: Index of the last query's first run.
        first: Index of the first single key.
        count: Number of runs before merging; each single key counts as one run.
    Returns:
        The number of all runs after merging.
    """
    half = (count - first) // 2
    for i in range(half):
        runs[first + i].start, runs[count - 1 - i].start = (
            runs[count - 1 - i].start,
            runs[first + i].start,
        )
    num_runs = first
    for i in range(first, count):
        start = runs[i].start
        if num_runs > begin and runs[num_runs - 1].stop == start:
            runs[num_runs - 1].stop = start + 1
        else:
            num_runs = _add(runs, begin, num_runs, start, start + 1)
    return num_runs
