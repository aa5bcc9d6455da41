"""What the pending tokens and tree nodes of several sequences see, worked out of the trees
themselves: no mask is made.

A token sees the text up to itself, a node besides the nodes above it; a window or chunk takes away
what is too far in front.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.core.attention_metadata import RUN, KeyRun, VisibleRanges
from paceline.core.tree import IntArray
from paceline.util.compiled import Records, compiled


def visible_in_trees(
    starts: IntArray,
    cached: IntArray,
    pending: IntArray,
    parents: IntArray,
    depths: IntArray,
    ranks: IntArray,
    nodes: IntArray,
    window: int | None = None,
    chunk: int | None = None,
) -> VisibleRanges:
    """Return what queries see that lie packed: of each row its pending tokens, its nodes, then any
    number that see nothing.

    Args:
        starts: [rows + 1]: number of the first query of each row.
        cached, pending: [rows]: tokens in the cache before, and those that are fed.
        parents, depths, ranks: of all nodes: parent in its own tree, depth (1 below the root), and
            place in its tree by depth.
        nodes: [rows + 1]: where the nodes of each row begin.
        window: reach of sliding attention. chunk: of chunked attention.
    """
    runs, begin = _runs(
        starts, cached, pending, parents, depths, ranks, nodes, window or 0, chunk or 0
    )
    return VisibleRanges(runs, begin, starts, int(np.diff(starts).max()), packed=True)


@compiled
def _runs(
    starts: IntArray,
    cached: IntArray,
    pending: IntArray,
    parents: IntArray,
    depths: IntArray,
    ranks: IntArray,
    nodes: IntArray,
    window: int,
    chunk: int,
) -> tuple[NDArray[np.void], IntArray]:
    """Return runs and beginnings as in `VisibleRanges`."""
    rows = len(cached)
    begin = np.zeros(starts[rows] + 1, dtype=np.int64)
    most = 0
    for row in range(rows):
        most += pending[row]
        for node in range(nodes[row], nodes[row + 1]):
            most += depths[node] + 1
    runs = np.empty(most, dtype=RUN)
    count = 0
    for row in range(rows):
        text = cached[row] + pending[row]
        fed = pending[row] + nodes[row + 1] - nodes[row]
        for column in range(starts[row + 1] - starts[row]):
            query = starts[row] + column
            if column < pending[row]:
                position = cached[row] + column
                count = _add(
                    runs, begin[query], count, _first_seen(position, window, chunk), position + 1
                )
            elif column < fed:
                node = nodes[row] + column - pending[row]
                low = _first_seen(text - 1 + depths[node], window, chunk)
                if low < text:
                    count = _add(runs, begin[query], count, low, text)
                first = count
                # From the node upwards; positions fall by one with every step.
                while node >= nodes[row] and text - 1 + depths[node] >= low:
                    count += 1
                    runs[count - 1].start = text + ranks[node]
                    node = nodes[row] + parents[node] if parents[node] >= 0 else -1
                count = _join(runs, begin[query], first, count)
            begin[query + 1] = count
    return runs[:count], begin


@compiled
def _first_seen(position: int, window: int, chunk: int) -> int:
    if window:
        return max(0, position - window + 1)
    return position // chunk * chunk if chunk else 0


@compiled
def _add(runs: Records[KeyRun], begin: int, count: int, start: int, stop: int) -> int:
    """Add a run to those of a query from `begin` on; return how many there are."""
    runs[count].start = start
    runs[count].stop = stop
    runs[count].rank = (
        0 if count == begin else runs[count - 1].rank + runs[count - 1].stop - runs[count - 1].start
    )
    return count + 1


@compiled
def _join(runs: Records[KeyRun], begin: int, first: int, count: int) -> int:
    """Turn the single keys first .. count - 1, the last position first, into runs; return how
    many runs there are then.
    """
    half = (count - first) // 2
    for i in range(half):
        runs[first + i].start, runs[count - 1 - i].start = (
            runs[count - 1 - i].start,
            runs[first + i].start,
        )
    made = first
    for i in range(first, count):
        start = runs[i].start
        if made > begin and runs[made - 1].stop == start:
            runs[made - 1].stop = start + 1
        else:
            made = _add(runs, begin, made, start, start + 1)
    return made
