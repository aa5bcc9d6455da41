"""The keys of every query as a place to begin at and a list: what the Triton kernel of attention
by position reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.attention_metadata import AttentionMetadata, KeyRun, VisibleRanges
from paceline.core.tree import IntArray
from paceline.util.compiled import Records, compiled

_Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Paths:
    """Cache places of the keys that each query sees, by position: rank 0 is the first.

    Attributes:
        starts: int32 [rows + 1]; columns, packed: see `VisibleRanges`.
        start, leading: int32 [queries]: the keys of rank 0 .. leading - 1 lie at start, start + 1,
            ...
        count: int32 [queries]: all keys of the query.
        listed: int32 [queries, width]: the places of the keys of rank leading, leading + 1, ...
        most: keys of the query with the most.
    """

    starts: Tensor
    columns: int
    packed: bool
    start: Tensor
    leading: Tensor
    count: Tensor
    listed: Tensor
    most: int

    @property
    def width(self) -> int:
        """Places per query in `listed`."""
        return self.listed.shape[1]


def paths_of(
    order: AttentionMetadata, mask: Tensor | None, columns: int, device: torch.device
) -> Paths:
    """Return the paths of a forward's queries on a device; found once per mask, which all layers of
    a forward share.

    Args:
        mask: as for `AttentionMetadata.visible`.
    """
    visible = order.visible(mask, columns)
    found = order.kept.get(id(visible))  # `order` keeps it, so that no other one gets its id
    if found is None:
        found = order.kept[id(visible)] = _paths(visible, order, device)
    assert isinstance(found, Paths)
    return found


def _paths(visible: VisibleRanges, order: AttentionMetadata, device: torch.device) -> Paths:
    rows = np.repeat(np.arange(len(order.cached)), np.diff(visible.starts))
    start, leading, count = _measure(visible.runs, visible.begin, order.cached, order.tail, rows)
    listed = np.zeros((len(start), max(1, int((count - leading).max()))), dtype=np.int32)
    _list(visible.runs, visible.begin, order.cached, order.tail, rows, leading, listed)
    starts, *places = (
        torch.from_numpy(array).to(device)
        for array in (visible.starts.astype(np.int32), start, leading, count, listed)
    )
    return Paths(
        starts,
        visible.columns,
        visible.packed,
        places[0],
        places[1],
        places[2],
        places[3],
        int(count.max()),
    )


@compiled
def _measure(
    runs: Records[KeyRun], begin: IntArray, cached: IntArray, tail: IntArray, rows: IntArray
) -> tuple[_Ints, _Ints, _Ints]:
    queries = len(begin) - 1
    start, leading, count = (
        np.zeros(queries, np.int32),
        np.zeros(queries, np.int32),
        np.zeros(queries, np.int32),
    )
    for query in range(queries):
        row = rows[query]
        for index in range(begin[query], begin[query + 1]):
            run = runs[index]
            first = run.start if run.start < cached[row] else tail[row, run.start - cached[row]]
            if count[query] == 0:
                start[query] = first
            if leading[query] == count[query] and first == start[query] + count[query]:
                side_by_side = max(0, min(run.stop, cached[row]) - run.start)
                while (
                    run.start + side_by_side < run.stop
                    and tail[row, run.start + side_by_side - cached[row]] == first + side_by_side
                ):
                    side_by_side += 1
                leading[query] += side_by_side
            count[query] += run.stop - run.start
    return start, leading, count


@compiled
def _list(
    runs: Records[KeyRun],
    begin: IntArray,
    cached: IntArray,
    tail: IntArray,
    rows: IntArray,
    leading: _Ints,
    listed: NDArray[np.int32],
) -> None:
    for query in range(len(begin) - 1):
        row = rows[query]
        for index in range(begin[query], begin[query + 1]):
            run = runs[index]
            for ordinal in range(max(run.start, run.start + leading[query] - run.rank), run.stop):
                place = ordinal if ordinal < cached[row] else tail[row, ordinal - cached[row]]
                listed[query, run.rank + ordinal - run.start - leading[query]] = place
