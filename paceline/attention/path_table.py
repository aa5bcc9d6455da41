"""Store the visible keys of each query (`Paths`) in a table at a fixed address."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from paceline.attention.paths import Paths, fill_paths
from paceline.attention.settings import PATH_WIDTH, QUERIES_PER_PROGRAM
from paceline.backend.attention_metadata import AttentionMetadata, VisibleRanges


class PathTable:
    """Stores `Paths` in a table of constant size, for one type of attention layer.

    A `Paths` object lists the cache positions of the keys that each query sees. All forward passes
    of the same shape read these positions from the same memory.

    Args:
        queries: Maximum number of queries.
        rows: Maximum number of rows.
        groups: Number of query heads per key head.
        max_keys: Maximum number of keys per query.
    """

    def __init__(self, queries: int, rows: int, groups: int, max_keys: int) -> None:
        self._queries, self._max_keys = queries, max_keys
        self._tile_columns = max(1, QUERIES_PER_PROGRAM // groups)
        self._tiles = rows + queries // self._tile_columns

    @property
    def size(self) -> int:
        """Return the number of integers in the table."""
        return 4 * self._tiles + self._queries * (3 + PATH_WIDTH)

    def paths(self, table: Tensor) -> dict[int, Paths]:
        """Return the `Paths` for a table, in a dictionary with a single entry.

        The key of the entry is the maximum number of columns (tokens) per tile of queries.

        Args:
            table: Table on the device, int32 [size]. `fill` writes the values on the host, and the
                caller copies them to this table.
        """
        tiles = np.zeros((self._tiles, 4), dtype=np.int32)
        shape = self._queries, PATH_WIDTH, True, self._tile_columns, self._max_keys
        return {self._tile_columns: Paths(table, tiles, *shape)}

    def fill(
        self,
        table: np.ndarray[tuple[int], np.dtype[np.int32]],
        visible: VisibleRanges,
        order: AttentionMetadata,
    ) -> bool:
        """Write each query's visible keys (`Paths`); return False if they do not fit.

        Args:
            table: Table, int32 [size].
            visible: Visible ranges of the batch.
            order: Keys of each row, ordered by position.
        """
        table.fill(0)
        room = self._tiles, self._queries
        return fill_paths(table, visible, order, self._tile_columns, room)
