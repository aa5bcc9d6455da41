"""List the cache positions of each query's visible keys, for the Triton kernel."""

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


@dataclass(slots=True)
class Paths:
    """Cache positions of the keys that each query sees, in text order.

    The rank of a key is its index among the keys that the query sees. The first keys of a query are
    usually at consecutive cache positions. `Paths` stores only the first of these positions, and
    the number of these keys (`leading`). It lists the cache positions of the other keys:

        cache position of rank r = start + r              if r < leading
        cache position of rank r = listed[r - leading]    otherwise

    Attributes:
        table: Five arrays, concatenated; int32, on the device. The first array is `tiles`. The
            arrays `start`, `leading` and `count` contain one number per query, where `count` is the
            number of keys that the query sees. The last array is `listed`, [queries, width].
        tiles: Tiles of consecutive queries from one row, [tiles, 4]. The values are the row of the
            key tensor, the first query, the number of queries, and the first query's column.
        queries: Number of queries.
        width: Number of cache positions per query in `listed`.
        packed: Whether the query tensor has a single row; see `VisibleRanges`.
        tile_columns: Maximum number of queries per tile.
        max_count: Largest number of keys per query.
    """

    table: Tensor
    tiles: _Ints
    queries: int
    width: int
    packed: bool
    tile_columns: int
    max_count: int
    _scratch: Tensor | None = None

    @property
    def num_tiles(self) -> int:
        """Return the number of tiles."""
        return len(self.tiles)

    def first_query(self, tile: int) -> int:
        """Return the index of a tile's first query.

        If `tile` is the number of tiles, return the number of queries.
        """
        return int(self.tiles[tile, 1]) if tile < len(self.tiles) else self.queries

    def scratch(self, size: int) -> Tensor:
        """Return float32 scratch memory, which all layers of a forward pass share.

        Args:
            size: Minimum number of floats.
        """
        if self._scratch is None or self._scratch.numel() < size:
            self._scratch = torch.empty(size, dtype=torch.float32, device=self.table.device)
        return self._scratch


def paths_of(
    order: AttentionMetadata,
    mask: Tensor | None,
    columns: int,
    tile_columns: int,
    device: torch.device,
) -> Paths:
    """Return the `Paths` of a forward pass, shared by all layers with the same mask.

    Args:
        order: Keys of each row, ordered by text position.
        mask: Mask, as in `AttentionMetadata.visible`.
        columns: Number of columns in the query tensor.
        tile_columns: Maximum number of queries per tile.
        device: Device of the result.
    """
    visible = order.visible(mask, columns)
    # `order` keeps `visible` alive, so that no other object gets its id
    shared = order.derived.setdefault(id(visible), {})
    assert isinstance(shared, dict)
    if tile_columns not in shared:
        shared[tile_columns] = _paths(visible, order, tile_columns, device)
    paths = shared[tile_columns]
    assert isinstance(paths, Paths)
    return paths


def _paths(
    visible: VisibleRanges, order: AttentionMetadata, tile_columns: int, device: torch.device
) -> Paths:
    rows = np.repeat(np.arange(len(order.cached)), np.diff(visible.starts))
    start, leading, count = _measure(visible.runs, visible.begin, order.cached, order.tail, rows)
    tiles = _tiles(visible.starts, tile_columns, order.key_rows)
    queries, width = len(start), max(1, int((count - leading).max(initial=0)))
    size = tiles.size + queries * (3 + width)
    host = torch.zeros(size, dtype=torch.int32)
    if device.type == "cuda":
        host = host.pin_memory()  # so that the host does not wait for the copy
    listed = np.split(host.numpy(), [size - queries * width])
    listed[0][:] = np.concatenate([tiles.ravel(), start, leading, count])
    _list(
        visible.runs,
        visible.begin,
        order.cached,
        order.tail,
        rows,
        leading,
        listed[1].reshape(queries, width),
    )
    return Paths(
        host.to(device, non_blocking=True),
        tiles,
        queries,
        width,
        visible.packed,
        tile_columns,
        int(count.max(initial=0)),
    )


def fill_paths(
    table: _Ints,
    visible: VisibleRanges,
    order: AttentionMetadata,
    tile_columns: int,
    room: tuple[int, int],
) -> bool:
    """Write the `Paths` of a batch to a table; return False if they do not fit.

    Args:
        table: Table of zeros, int32. It has room for 4 numbers per tile, and for 3 + width numbers
            per query, where width is the maximum number of listed keys per query.
        visible: Visible ranges of the batch.
        order: Keys of each row, ordered by text position.
        tile_columns: Maximum number of queries per tile.
        room: Maximum number of tiles and maximum number of queries in the table.
    """
    rows = np.repeat(np.arange(len(order.cached)), np.diff(visible.starts))
    start, leading, count = _measure(visible.runs, visible.begin, order.cached, order.tail, rows)
    tiles, (num_tiles, queries) = _tiles(visible.starts, tile_columns, order.key_rows), room
    width = (len(table) - 4 * num_tiles) // queries - 3
    if len(tiles) > num_tiles or (count - leading).max(initial=0) > width:
        return False
    table[: tiles.size] = tiles.ravel()
    columns = table[4 * num_tiles : 4 * num_tiles + 3 * queries].reshape(3, queries)
    columns[:, : len(start)] = start, leading, count
    listed = table[4 * num_tiles + 3 * queries :].reshape(queries, width)
    _list(visible.runs, visible.begin, order.cached, order.tail, rows, leading, listed)
    return True


def _tiles(starts: IntArray, tile_columns: int, key_rows: IntArray) -> _Ints:
    """Divide each row's queries into tiles of consecutive queries; see `Paths.tiles`."""
    columns = np.diff(starts)
    counts = -(-columns // tile_columns)
    rows = np.repeat(np.arange(len(columns)), counts)
    first = (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)) * tile_columns
    queries = np.minimum(tile_columns, columns[rows] - first)
    return np.stack([key_rows[rows], starts[rows] + first, queries, first], axis=1).astype(np.int32)


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
