"""Show the slots of a bucket to a model, at fixed addresses."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from paceline.attention.fixed import takes_trees
from paceline.kv_cache.slot_cache import SlotCache, SlotLayer
from paceline.model.fixed_shapes.buckets import BucketKey


class RowIndices:
    """Rows of stores to which the columns of a bucket are written.

    Args:
        key: Shape of the bucket.
        cache: KV cache.
        cache_positions: int64 [rows, columns] on the device; negative for columns without a token.
    """

    def __init__(self, key: BucketKey, cache: SlotCache, cache_positions: Tensor) -> None:
        self._positions = cache_positions
        self._slots = key.first_slot + torch.arange(key.rows, device=cache_positions.device)
        self._num_slots, self._capacity = cache.slots, cache.capacity
        self._first_rows: dict[int, Tensor] = {}
        self._indices: dict[int, Tensor] = {}

    def compute(self, heads: set[int]) -> None:
        """Compute the rows of the current forward pass, for each number of key heads."""
        for count in heads:
            if count not in self._first_rows:
                head = torch.arange(count, device=self._slots.device)
                self._first_rows[count] = ((self._slots[:, None] * count + head) * self._capacity)[
                    ..., None
                ]
            rows = self._first_rows[count] + self._positions[:, None]
            scratch = self._num_slots * count * self._capacity
            self._indices[count] = torch.where(self._positions[:, None] < 0, scratch, rows).view(-1)

    def __call__(self, layer: BucketLayer, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [rows, heads, columns, dim] to the slots of a layer."""
        index = self._indices[keys.shape[1]]
        for store, states in ((layer.slots.key_rows, keys), (layer.slots.value_rows, values)):
            store.index_copy_(0, index, states.reshape(-1, states.shape[-1]))


class ColumnWriter(Protocol):
    """Writes the keys and values of all columns to the slots of one layer."""

    def __call__(self, layer: BucketLayer, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [rows, heads, columns, dim]."""


class BucketLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, for the rows and cache positions of a bucket.

    Args:
        layer: The layer, with all slots.
        key: Shape of the bucket.
        write: Function that writes the columns.
    Attributes:
        slots: The layer, with all slots.
    """

    is_sliding = False
    is_compileable = True

    def __init__(self, layer: SlotLayer, key: BucketKey, write: ColumnWriter) -> None:
        super().__init__()
        self.slots, self._write, self._num_positions = layer, write, key.positions
        rows = slice(key.first_slot, key.first_slot + key.rows)
        self.keys, self.values = (
            store[rows, :, : key.positions] for store in (layer.keys, layer.values)
        )
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the stores exist."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the states of all columns; return the positions of the bucket."""
        self._write(self, key_states, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys, for models that build their own mask."""
        return self._num_positions, 0

    def get_seq_length(self) -> int:
        """Return 0: the forward pass gets the position of each token."""
        return 0

    def get_max_length(self) -> int:
        """Return the number of positions that attention reads."""
        return self._num_positions


class BucketCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers, for the rows and cache positions of a bucket.

    Args:
        cache: KV cache; all its layers have stores.
        key: Shape of the bucket.
        cache_positions: As in `RowIndices`.
    """

    def __init__(self, cache: SlotCache, key: BucketKey, cache_positions: Tensor) -> None:
        self._indices: RowIndices | None = None
        write: ColumnWriter
        if takes_trees(cache_positions.device.type):
            from paceline.attention.tree_kernel import store_columns

            def write(layer: BucketLayer, keys: Tensor, values: Tensor) -> None:
                store_columns((keys, values), (layer.keys, layer.values), cache_positions)

        else:
            self._indices = write = RowIndices(key, cache, cache_positions)
        super().__init__(layers=[BucketLayer(layer, key, write) for layer in cache.layers])

    def begin(self) -> None:
        """Compute where the columns of the current forward pass are written."""
        if self._indices is not None:
            self._indices.compute({layer.keys.shape[1] for layer in self.layers})
