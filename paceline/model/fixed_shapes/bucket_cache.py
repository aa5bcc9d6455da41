"""Show the slots of a bucket to a model, at fixed addresses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

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

    def __getitem__(self, heads: int) -> Tensor:
        """Return row numbers, int64 [rows * heads * columns]."""
        return self._indices[heads]


class BucketLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, for the rows and cache positions of a bucket."""

    is_sliding = False
    is_compileable = True

    def __init__(self, layer: SlotLayer, key: BucketKey, indices: RowIndices) -> None:
        super().__init__()
        self._layer, self._indices, self._num_positions = layer, indices, key.positions
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
        index = self._indices[key_states.shape[1]]
        for store, states in (
            (self._layer.key_rows, key_states),
            (self._layer.value_rows, value_states),
        ):
            store.index_copy_(0, index, states.reshape(-1, states.shape[-1]))
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
        self._indices = RowIndices(key, cache, cache_positions)
        self._heads = {layer.keys.shape[1] for layer in cache.layers}
        super().__init__(layers=[BucketLayer(layer, key, self._indices) for layer in cache.layers])

    def begin(self) -> None:
        """Compute where the columns of the current forward pass are written."""
        self._indices.compute(self._heads)
