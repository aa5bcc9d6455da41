"""Read and write cache slots at fixed addresses, in passes of a fixed shape.

The fixed tensor shape is called a bucket.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from paceline.kv_cache.slot_cache import SlotCache
from paceline.kv_cache.slot_layer import SlotLayer
from paceline.model.fixed_shapes.buckets import BucketKey


class ColumnWriter(Protocol):
    """Writes the keys and values of all columns to the slots of one layer.

    A column is one token of a forward pass, or padding.
    """

    def begin(self) -> None:
        """Prepare to write the keys and values of the current forward pass."""

    def __call__(self, layer: SlotLayer, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [rows, heads, columns, dim] to the slots of a layer."""


class TritonWriter:
    """Writes keys and values to the slots of a layer with one Triton kernel launch.

    A column of the keys and values is one token of a forward pass, or padding.

    Args:
        cache_positions: Cache position of each column, int64 [rows, columns], on the device;
            negative for columns without a token.
        store_rows: For each column, the row of the key and value tensors at which the request's
            slot begins, int64 [rows, columns].
    """

    def __init__(self, cache_positions: Tensor, store_rows: Tensor) -> None:
        from paceline.attention.tree_kernel import store_columns

        self._store, self._positions, self._rows = store_columns, cache_positions, store_rows

    def begin(self) -> None:
        """Do nothing, because the kernel itself reads the cache positions."""

    def __call__(self, layer: SlotLayer, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [rows, heads, columns, dim] to the slots of a layer."""
        self._store((keys, values), (layer.keys, layer.values), self._positions, self._rows)


class TorchWriter:
    """Writes keys and values to the slots of a layer with torch's `index_copy_`.

    A column of the keys and values is one token of a forward pass, or padding.

    Args:
        key: Fixed shape of the forward passes (bucket).
        cache: KV cache.
        cache_positions: Cache position of each column, int64 [rows, columns], on the device;
            negative for columns without a token.
    """

    def __init__(self, key: BucketKey, cache: SlotCache, cache_positions: Tensor) -> None:
        self._positions = cache_positions
        self._slots = key.first_slot + torch.arange(key.rows, device=cache_positions.device)
        self._num_slots, self._capacity = cache.allocated
        self._first_rows: dict[int, Tensor] = {}
        self._indices: dict[int, Tensor] = {}
        self._heads = {layer.keys.shape[1] for layer in cache.layers}

    def begin(self) -> None:
        """Compute which rows of the key and value tensors this forward pass writes.

        Layers with the same number of key heads share the row indices.
        """
        for count in self._heads:
            if count not in self._first_rows:
                head = torch.arange(count, device=self._slots.device)
                self._first_rows[count] = ((self._slots[:, None] * count + head) * self._capacity)[
                    ..., None
                ]
            rows = self._first_rows[count] + self._positions[:, None]
            scratch = self._num_slots * count * self._capacity
            self._indices[count] = torch.where(self._positions[:, None] < 0, scratch, rows).view(-1)

    def __call__(self, layer: SlotLayer, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [rows, heads, columns, dim] to the slots of a layer."""
        index = self._indices[keys.shape[1]]
        for store, states in ((layer.key_rows, keys), (layer.value_rows, values)):
            store.index_copy_(0, index, states.reshape(-1, states.shape[-1]))


class BucketLayer(CacheLayerMixin):  # type: ignore[misc]
    """Reads and writes one layer's keys and values in passes of one fixed shape.

    Args:
        layer: Layer of the KV cache, with the keys and values of all slots.
        slots: Slots that attention reads.
        positions: Number of cache positions that attention reads.
        write: Function that writes the keys and values of new tokens.
    """

    is_sliding = False
    is_compileable = True

    def __init__(self, layer: SlotLayer, slots: slice, positions: int, write: ColumnWriter) -> None:
        super().__init__()
        self._layer, self._write, self._num_positions = layer, write, positions
        self.keys, self.values = (
            store[slots, :, :positions] for store in (layer.keys, layer.values)
        )
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing, because the tensors already exist."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values; return all keys and values that attention reads."""
        self._write(self._layer, key_states, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and offset of the keys, for models that build their own mask."""
        return self._num_positions, 0

    def get_seq_length(self) -> int:
        """Return 0, because the forward pass receives the position of each token."""
        return 0

    def get_max_length(self) -> int:
        """Return the number of positions that attention reads."""
        return self._num_positions


class BucketCache(Cache):  # type: ignore[misc]
    """The KV cache that a model's `forward` receives in passes of one fixed shape.

    Args:
        cache: KV cache in which every layer stores keys and values.
        slots: Slots that attention reads.
        positions: Number of cache positions that attention reads.
        write: Function that writes the keys and values of new tokens.
    """

    def __init__(self, cache: SlotCache, slots: slice, positions: int, write: ColumnWriter) -> None:
        self.begin = write.begin
        super().__init__(
            layers=[BucketLayer(layer, slots, positions, write) for layer in cache.layers]
        )
