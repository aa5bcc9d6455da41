"""Describe which keys each query sees, ordered by text position.

Batch-invariant attention sums in this order, so its results do not depend on where the keys are
stored in the cache.
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
    """Consecutive visible keys, ordered by text position."""

    start: int  # first ordinal, see `AttentionMetadata`
    stop: int  # ordinal after the last key
    rank: int  # number of visible keys before this run


RUN = record_dtype(KeyRun)


@dataclass(frozen=True, slots=True)
class VisibleRanges:
    """The visible keys of every query, as runs of consecutive keys.

    The keys of a row are numbered by text position. A run contains the keys from one number to
    another, all of which the query sees.

    Attributes:
        runs: Runs of all queries, [n] records of `KeyRun`.
        begin: Index of each query's first run, followed by the number of runs, [queries + 1].
        starts: Index of each row's first query, followed by the number of queries, [rows + 1].
        columns: Maximum number of queries per row.
        packed: Whether the query tensor has a single row, which holds the queries of all rows in
            sequence.
        addresses: Memory addresses of `runs`, `begin` and `starts`, stored because numpy is slow
            to return them.
    """

    runs: NDArray[np.void]
    begin: IntArray
    starts: IntArray
    columns: int
    packed: bool = False
    addresses: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        addresses = self.runs.ctypes.data, self.begin.ctypes.data, self.starts.ctypes.data
        object.__setattr__(self, "addresses", addresses)


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The keys of every row, ordered by text position.

    The keys of a row are numbered in text order. The first `cached` keys have the cache positions
    0, 1, 2, and so on. `tail` lists the cache positions of the other keys.

    Attributes:
        cached: For each row, the number of leading cache positions that are in text order, [rows],
            contiguous in memory.
        tail: Cache positions of the remaining keys, in text order, [rows, columns], contiguous in
            memory. If several keys share a text position, no query sees more than one of them.
        keys: Number of keys in the longest row.
        ranges_by_mask: Visible ranges, by the address of a placeholder mask (`stand_in_mask`). If
            there are none, `visible` computes the ranges from real masks.
        derived: Values computed from `VisibleRanges` objects, by the id of the object.
        key_rows: Row of the key tensor at which the keys of each batch row begin, [rows]. By
            default, batch row i uses row i of the key tensor.
        addresses: Memory addresses of `cached`, `tail` and `key_rows`.
    """

    cached: IntArray
    tail: IntArray
    keys: int
    ranges_by_mask: dict[int, VisibleRanges] = field(default_factory=dict)
    derived: dict[int, object] = field(default_factory=dict)
    key_rows: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    addresses: tuple[int, int, int] = field(init=False)
    _seen: dict[tuple[int, int], tuple[Tensor | None, VisibleRanges]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.key_rows) != len(self.cached):
            object.__setattr__(self, "key_rows", np.arange(len(self.cached), dtype=np.int64))
        arrays = self.cached, self.tail, self.key_rows
        object.__setattr__(self, "addresses", tuple(array.ctypes.data for array in arrays))

    @staticmethod
    def from_columns(
        cached: IntArray, cache_positions: IntArray, positions: IntArray, padding: BoolArray
    ) -> AttentionMetadata:
        """Return the metadata of a forward pass, with the keys ordered by text position.

        Args:
            cached: Number of tokens in the cache before the pass, [rows].
            cache_positions: Cache position of each column (query token), [rows, columns].
            positions: Text position of each column, [rows, columns].
            padding: True for columns without a token, [rows, columns].
        """
        last = np.iinfo(np.int64).max
        order = np.argsort(np.where(padding, last, positions), axis=1, kind="stable")
        tail = np.ascontiguousarray(
            np.take_along_axis(cache_positions, order, axis=1), dtype=np.int64
        )
        num_keys = int(cached.max()) + cache_positions.shape[1]
        return AttentionMetadata(np.ascontiguousarray(cached, dtype=np.int64), tail, num_keys)

    @staticmethod
    def in_order(rows: int, keys: int) -> AttentionMetadata:
        """Return the metadata of rows whose cache positions are already in text order.

        Args:
            rows: Number of rows.
            keys: Number of keys per row.
        """
        return AttentionMetadata(
            np.full(rows, keys, dtype=np.int64), np.empty((rows, 0), dtype=np.int64), keys
        )

    def visible(self, mask: Tensor | None, columns: int) -> VisibleRanges:
        """Return the keys that each query sees.

        The result is computed once per forward pass and shared by layers with the same mask.

        Args:
            mask: Boolean mask of shape [rows or 1, 1, columns, positions]. With None, attention is
                causal if there are several queries per row; a single query per row sees all keys.
            columns: Number of queries per row.
        Raises:
            UnsupportedModelError: The model created a mask, instead of passing on the engine's
                placeholder mask.
        """
        if self.ranges_by_mask:
            ranges = None if mask is None else self.ranges_by_mask.get(mask_address(mask))
            if ranges is None:
                raise UnsupportedModelError(
                    "batch-invariant attention got a mask that the model itself made; expected the"
                    " mask that the engine passes. Pass \0batch_invariant=False\0."
                )
            return ranges
        key = id(mask), columns
        seen = self._seen.get(key)  # holds the mask, so that no other mask gets its id
        if seen is None:
            seen = self._seen[key] = mask, self._all(columns) if mask is None else self._read(mask)
        return seen[1]

    def _read(self, mask: Tensor) -> VisibleRanges:
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
    """Return `starts` and `columns` of `VisibleRanges` for rows of equal length.

    Args:
        rows: Number of rows.
        columns: Number of queries per row.
    """
    return np.arange(rows + 1) * columns, columns


def stand_in_mask(queries: int, positions: int, device: torch.device) -> Tensor:
    """Return a placeholder mask whose values are never read.

    The shape is [1, 1, queries, positions], but the mask occupies the memory of a single bool.
    """
    return torch.ones((), dtype=torch.bool, device=device).expand(1, 1, queries, positions)


def mask_address(mask: Tensor) -> int:
    """Return the memory address by which `ranges_by_mask` identifies a mask.

    The mask is a placeholder (`stand_in_mask`). A slice of the mask has the same address.
    """
    return mask.untyped_storage().data_ptr()


@compiled
def _runs(mask: BoolArray, cached: IntArray, tail: IntArray) -> tuple[NDArray[np.void], IntArray]:
    """Return all runs of visible keys, and the index of each query's first run.

    A run is a range of consecutive keys that a query sees. The mask has the shape [rows, columns,
    positions].
    """
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
    for position in tail:
        count += sees[position] and not before
        before = sees[position]
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
