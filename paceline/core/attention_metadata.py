"""Which keys a query sees, in order of position: what the sums of the batch-invariant attention
are ordered by.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.tree import BoolArray, IntArray
from paceline.errors import UnsupportedModelError
from paceline.util.compiled import Records, compiled, record_dtype


class KeyRun:
    """Keys that a query sees and that follow one another in order of position."""

    start: int  # ordinals of keys, see `AttentionMetadata`
    stop: int
    rank: int  # how many keys the query sees before this run


RUN = record_dtype(KeyRun)


@dataclass(frozen=True, slots=True)
class VisibleRanges:
    """The keys each query sees.

    Attributes:
        runs: of all queries, [n] of `KeyRun`.
        begin: [queries + 1]: query i has the runs begin[i] .. begin[i + 1] - 1.
        starts: [rows + 1]: row r has the queries starts[r] .. starts[r + 1] - 1, one a column.
        columns: of the row with most.
        packed: the tensor of queries has a single row, in which the columns of all rows lie behind
            one another.
    """

    runs: NDArray[np.void]
    begin: IntArray
    starts: IntArray
    columns: int
    packed: bool = False
    # addresses of the arrays, which take long to ask for
    places: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "places", (self.runs.ctypes.data, self.begin.ctypes.data, self.starts.ctypes.data)
        )


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The keys of every row by position: ordinals 0 .. cached - 1 are the cache places of these
    numbers, then come `tail`.

    Attributes:
        cached: [rows], contiguous: how many first places lie in order of position.
        tail: [rows, columns], contiguous: the places behind them, by position. Of several at one
            position, no query sees more than one.
        keys: of the longest row.
        marks: what the queries see, by the address of the mask that stands for it (`mark`); none =
            it is read off the masks.
    """

    cached: IntArray
    tail: IntArray
    keys: int
    marks: dict[int, VisibleRanges] = field(default_factory=dict)
    # what else was made of a `VisibleRanges`, by its id
    kept: dict[int, object] = field(default_factory=dict)
    places: tuple[int, int] = field(init=False)  # addresses of `cached` and `tail`
    _seen: dict[tuple[int, int], tuple[Tensor | None, VisibleRanges]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", (self.cached.ctypes.data, self.tail.ctypes.data))

    @staticmethod
    def of(
        cached: IntArray, places: IntArray, positions: IntArray, padding: BoolArray
    ) -> AttentionMetadata:
        """Order the columns of one forward.

        Args:
            cached: [rows]: tokens in the cache before.
            places, positions: [rows, columns]: of each column, in the cache and in the text.
            padding: [rows, columns]: True where a column belongs to no token.
        """
        last = np.iinfo(np.int64).max
        order = np.argsort(np.where(padding, last, positions), axis=1, kind="stable")
        tail = np.ascontiguousarray(np.take_along_axis(places, order, axis=1), dtype=np.int64)
        return AttentionMetadata(
            np.ascontiguousarray(cached, dtype=np.int64), tail, int(cached.max()) + places.shape[1]
        )

    @staticmethod
    def of_places(rows: int, places: int) -> AttentionMetadata:
        """The order of keys that lie in order of position."""
        return AttentionMetadata(
            np.full(rows, places, dtype=np.int64), np.empty((rows, 0), dtype=np.int64), places
        )

    def visible(self, mask: Tensor | None, columns: int) -> VisibleRanges:
        """What the queries see; found once per mask, which all layers of a forward share.

        Args:
            mask: bool [rows or 1, 1, columns, places]; without one a single query sees all keys of
                its row, and of several each sees those up to its own ordinal.
        Raises:
            UnsupportedModelError: there are marks, and the mask is none of them.
        """
        if self.marks:
            found_mark = None if mask is None else self.marks.get(address_of(mask))
            if found_mark is None:
                raise UnsupportedModelError(
                    "attention by position got a mask that the model made itself; expected the one"
                    " it was given. Set batch_invariant to false."
                )
            return found_mark
        key = id(mask), columns
        found = self._seen.get(key)  # the mask is kept, so that no other one gets its id
        if found is None:
            found = self._seen[key] = mask, self._all(columns) if mask is None else self._find(mask)
        return found[1]

    def _find(self, mask: Tensor) -> VisibleRanges:
        rows = mask.expand(len(self.cached), -1, -1, -1)[:, 0].cpu().contiguous().numpy()
        return VisibleRanges(*_runs(rows, self.cached, self.tail), *_even(*rows.shape[:2]))

    def _all(self, columns: int) -> VisibleRanges:
        rows = len(self.cached)
        runs = np.zeros((rows, columns), dtype=RUN)
        runs["stop"] = (
            (self.cached + self.tail.shape[1])[:, None] if columns == 1 else 1 + np.arange(columns)
        )
        return VisibleRanges(runs.reshape(-1), np.arange(rows * columns + 1), *_even(rows, columns))


def _even(rows: int, columns: int) -> tuple[IntArray, int]:
    """Return `VisibleRanges.starts` and `VisibleRanges.columns` where all rows have as many."""
    return np.arange(rows + 1) * columns, columns


def mark(queries: int, places: int, device: torch.device) -> Tensor:
    """Return what a model takes for a mask, bool [1, 1, queries, places], and what is not read:
    a single number in memory.
    """
    return torch.ones((), dtype=torch.bool, device=device).expand(1, 1, queries, places)


def address_of(mark: Tensor) -> int:
    """Return the key of a mark in `AttentionMetadata.marks`; that of a part of it is the same."""
    return mark.untyped_storage().data_ptr()


@compiled
def _runs(mask: BoolArray, cached: IntArray, tail: IntArray) -> tuple[NDArray[np.void], IntArray]:
    """Return runs and beginnings as in `VisibleRanges`; mask: [rows, columns, places]."""
    rows, columns, _ = mask.shape
    begin = np.zeros(rows * columns + 1, dtype=np.int64)
    for query in range(rows * columns):
        row, column = divmod(query, columns)
        begin[query + 1] = begin[query] + _count(mask[row, column], cached[row], tail[row])
    runs = np.empty(begin[-1], dtype=RUN)
    for query in range(rows * columns):
        row, column = divmod(query, columns)
        _write(mask[row, column], cached[row], tail[row], runs[begin[query] : begin[query + 1]])
    return runs, begin


@compiled
def _count(sees: BoolArray, cached: int, tail: IntArray) -> int:
    count, before = 0, False
    for visible in sees[:cached]:
        count += visible and not before
        before = visible
    for place in tail:
        count += sees[place] and not before
        before = sees[place]
    return count


@compiled
def _write(sees: BoolArray, cached: int, tail: IntArray, runs: Records[KeyRun]) -> None:
    count, rank = 0, 0
    before = False
    for ordinal in range(cached + len(tail)):
        visible = sees[ordinal if ordinal < cached else tail[ordinal - cached]]
        if visible and not before:
            runs[count].start = ordinal
            runs[count].rank = rank
            count += 1
        if visible:
            runs[count - 1].stop = ordinal + 1
        rank += visible
        before = visible
