"""List the cache positions of each query's keys, for the Triton kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.attention_metadata import AttentionMetadata, KeyRun, VisibleRanges
from paceline.core.tree import IntArray
from paceline.util.compiled import Records, compiled

_Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Paths:
    """Cache positions of the keys of each query, ranked by text position.

    Attributes:
        starts: int32 [rows + 1], as in `VisibleRanges`.
        columns: As in `VisibleRanges`.
        packed: As in `VisibleRanges`.
        start: int32 [queries], cache position of the key of rank 0.
        leading: int32 [queries], number of keys in a row from `start` on.
        count: int32 [queries], number of all keys.
        listed: int32 [queries, width], cache positions of the keys of rank `leading` and above.
        max_count: Largest number of keys of a query.
    """

    starts: Tensor
    columns: int
    packed: bool
    start: Tensor
    leading: Tensor
    count: Tensor
    listed: Tensor
    max_count: int

    @property
    def width(self) -> int:
        """Return the cache positions per query in `listed`."""
        return self.listed.shape[1]


def paths_of(
    order: AttentionMetadata, mask: Tensor | None, columns: int, device: torch.device
) -> Paths:
    """Return the paths of a forward's queries; its layers share them per mask.

    Args:
        order: Keys of each row by position.
        mask: As in `AttentionMetadata.visible`.
        columns: Columns of the query.
        device: Device of the result.
    """
    visible = order.visible(mask, columns)
    paths = order.derived.get(id(visible))  # `order` keeps it, so that no other one gets its id
    if paths is None:
        paths = order.derived[id(visible)] = _paths(visible, order, device)
    assert isinstance(paths, Paths)
    return paths


def _paths(visible: VisibleRanges, order: AttentionMetadata, device: torch.device) -> Paths:
    rows = np.repeat(np.arange(len(order.cached)), np.diff(visible.starts))
    start, leading, count = _measure(visible.runs, visible.begin, order.cached, order.tail, rows)
    listed = np.zeros((len(start), max(1, int((count - leading).max()))), dtype=np.int32)
    _list(visible.runs, visible.begin, order.cached, order.tail, rows, leading, listed)
    starts, *columns = (
        torch.from_numpy(array).to(device)
        for array in (visible.starts.astype(np.int32), start, leading, count, listed)
    )
    return Paths(
        starts,
        visible.columns,
        visible.packed,
        columns[0],
        columns[1],
        columns[2],
        columns[3],
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
                adjacent = max(0, min(run.stop, cached[row]) - run.start)
                while (
                    run.start + adjacent < run.stop
                    and tail[row, run.start + adjacent - cached[row]] == first + adjacent
                ):
                    adjacent += 1
                leading[query] += adjacent
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
                position = ordinal if ordinal < cached[row] else tail[row, ordinal - cached[row]]
                listed[query, run.rank + ordinal - run.start - leading[query]] = position
