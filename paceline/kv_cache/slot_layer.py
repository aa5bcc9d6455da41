"""Store the keys and values of one decoder layer, with one request per slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from paceline.core.tree import IntArray
from paceline.kv_cache.blocks import BlockList, Store


@dataclass(slots=True)
class WriteWindow:
    """Cache positions that a forward pass writes; all layers write the same positions.

    Attributes:
        first: First slot of the forward pass.
        rows: Number of consecutive slots in the forward pass.
        positions: Cache position of each query column, [rows, width]; [1, queries] if all requests
            are packed into one row.
        slots: Slot of each query column, in the shape of `positions` or [rows, 1].
        visible: Number of cache positions visible to attention: the largest entry of `positions`
            plus 1.
        in_order: Whether the columns of every row have consecutive cache positions.
        start: First cache position that attention sees.
        key_rows: For each request, the row of the key tensor at which the request's cache positions
            begin, [requests]. The key tensor contains only the keys that attention sees.
        gathered: Cache positions that attention sees for each request, [requests, visible]; None
            if attention can use a view of the keys without copying them.
        indices: Cached results of `row_index`.
    """

    first: int = 0
    rows: int = 0
    positions: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    slots: IntArray = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))
    visible: int = 0
    in_order: bool = True
    start: int = 0
    key_rows: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    gathered: IntArray | None = None
    indices: dict[tuple[int, int, torch.device], Tensor] = field(default_factory=dict)

    def row_index(
        self,
        slots: IntArray,
        positions: IntArray,
        heads: int,
        slot_length: int,
        device: torch.device,
    ) -> Tensor:
        """Return the rows of a layer's keys (or values) at the given cache positions.

        The keys of one layer are viewed as a matrix [slots * heads * slot_length, dim]. In this
        matrix, the row of a key is (slot * heads + head) * slot_length + cache position.

        Args:
            slots: Slots, [n, width] or [n, 1].
            positions: Cache positions, [n, width].
            heads: Number of key heads.
            slot_length: Number of positions that the tensor has per slot.
            device: Device of the result.
        Returns:
            Row indices, int64 [n * heads * width], ordered by row of `slots`, then head, then
            column.
        """
        key = (id(positions), heads, device)
        index = self.indices.get(key)
        if index is None:
            first = (slots[:, None, :] * heads + np.arange(heads)[:, None]) * slot_length
            flat = first + positions[:, None, :]
            index = self.indices[key] = torch.from_numpy(flat.reshape(-1)).to(
                device, non_blocking=True
            )
        return index


class SlotMemory(Protocol):
    """The part of the cache's interface that the layers use.

    Attributes:
        slots: Number of slots.
        capacity: Number of cache positions per slot.
        window: Cache positions that the current forward pass writes.
        blocks: Memory of the keys and values.
    """

    slots: int
    capacity: int
    window: WriteWindow
    blocks: BlockList

    def take_store(self, states: Tensor) -> tuple[int, int]:
        """Reserve a store: memory for the keys or values of one layer.

        The store has the number of heads, the head size and the dtype of `states`. Return the index
        of the store's block, and the store's index within the block.
        """

    def store(self, address: tuple[int, int]) -> Store:
        """Return the store (keys or values of one layer) at an address.

        The address consists of the index of the store's block and the index within that block.
        """

    def flat_index(
        self, slots: IntArray, positions: IntArray, heads: int, device: torch.device
    ) -> Tensor:
        """Return the indices of the tensor rows at the given cache positions.

        The keys or values of one layer are viewed as a tensor [slots * heads * capacity, dim].
        """


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Cache layer with the keys and values of all slots.

    Keys and values are tensors [slots, heads, capacity, dim].
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, owner: SlotMemory) -> None:
        super().__init__()
        self._owner = owner
        # Addresses of the layer's stores (keys and values) in the owner's blocks.
        self._addresses: list[tuple[int, int]] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Reserve memory for the layer, given its first keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._addresses = [self._owner.take_store(states) for states in (key_states, value_states)]
        self.is_initialized = True
        self.find_stores()

    def find_stores(self) -> None:
        """Look up the key and value tensors again after a reallocation moved them."""
        keys, values = map(self._owner.store, self._addresses)
        self.keys, self.key_rows = keys.tensor, keys.rows
        self.values, self.value_rows = values.tensor, values.rows

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values; return all keys and values that attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self._owner.window
        rows = slice(window.first, window.first + window.rows)
        if window.rows == 1 and window.in_order:
            start = int(window.positions[0, 0])
            self.keys[rows, :, start : start + key_states.shape[2]] = key_states
            self.values[rows, :, start : start + value_states.shape[2]] = value_states
        else:
            index = self._owner.flat_index(
                window.slots, window.positions, key_states.shape[1], key_states.device
            )
            for store, states in ((self.key_rows, key_states), (self.value_rows, value_states)):
                store.index_copy_(0, index, states.reshape(-1, states.shape[-1]))
        if window.gathered is not None:
            return self._gathered(self.key_rows), self._gathered(self.value_rows)
        seen = slice(window.start, window.start + window.visible)
        return self.keys[rows, :, seen], self.values[rows, :, seen]

    def _gathered(self, store: Tensor) -> Tensor:
        """Return copies of the visible keys or values, [requests, heads, visible, dim]."""
        window, heads = self._owner.window, self.keys.shape[1]
        assert window.gathered is not None, "checked by the caller"
        index = self._owner.flat_index(window.slots, window.gathered, heads, store.device)
        shape = len(window.gathered), heads, window.visible, store.shape[-1]
        return store.index_select(0, index).view(shape)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and offset of the keys, for models that build their own mask."""
        return self._owner.window.visible, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens in the longest row before this forward pass.

        The result is max(0, visible cache positions - columns in a row). If a single row contains
        several requests, the columns of all requests are subtracted. The result is then too small.
        """
        return max(0, self._owner.window.visible - int(self._owner.window.positions.shape[-1]))

    def get_max_length(self) -> int:
        """Return the number of cache positions per slot."""
        return self._owner.capacity
