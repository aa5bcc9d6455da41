"""Store keys and values in preallocated slots, one per request.

A forward pass writes the states of its query tokens after the cached tokens of each slot.
`SlotCache.move` then moves the rows of accepted tree nodes to the front; the next forward pass
overwrites the others. Rolling back only lowers the number of cached tokens. Layers with a sliding
window keep all positions, and the mask applies the window, so rejected tokens evict nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from paceline.backend.interface import RowMover
from paceline.backend.resolve import backend_of
from paceline.core.tree import IntArray
from paceline.kv_cache.blocks import BlockList
from paceline.kv_cache.settings import SPARE_POSITIONS


@dataclass(slots=True)
class WriteWindow:
    """Cache positions that a forward pass writes, set once and read by every layer.

    Attributes:
        first: First slot of the forward pass.
        rows: Number of consecutive slots that take part.
        positions: Cache position of each query column, [rows, width]; [1, queries] if requests are
            packed.
        slots: Slot of each query column, in the same shape or [rows, 1].
        visible: Number of cache positions that attention sees, the largest of `positions` plus 1.
        in_order: True if the columns of every row have consecutive cache positions.
        indices: Results of `SlotCache.flat_index` for this window.
    """

    first: int = 0
    rows: int = 0
    positions: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    slots: IntArray = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))
    visible: int = 0
    in_order: bool = True
    indices: dict[tuple[int, int, torch.device], Tensor] = field(default_factory=dict)


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [slots, heads, capacity, dim] each."""

    is_sliding = False
    is_croppable = True

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self._owner = owner
        self._addresses: list[tuple[int, int]] = []  # of its stores, in the owner's blocks

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the stores of a layer, with the heads and sizes of its first states."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._addresses = [self._owner.take_store(states) for states in (key_states, value_states)]
        self.is_initialized = True
        self.find_stores()

    def find_stores(self) -> None:
        """Look up the stores after an allocation."""
        keys, values = map(self._owner.blocks.store, self._addresses)
        self.keys, self.key_rows = keys.tensor, keys.rows
        self.values, self.value_rows = values.tensor, values.rows

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the states of the window's columns; return views of all visible positions."""
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
        return self.keys[rows, :, : window.visible], self.values[rows, :, : window.visible]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys, for models that build their own mask."""
        return self._owner.window.visible, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens in the longest row before this forward pass.

        It is 0 if more tokens are packed in a row than any slot holds.
        """
        return max(0, self._owner.window.visible - int(self._owner.window.positions.shape[-1]))

    def get_max_length(self) -> int:
        """Return the number of positions of a slot."""
        return self._owner.capacity


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers, and the list of free slots.

    Args:
        layers: Number of decoder layers.
        stores_per_block: Number of stores, two per layer, that share one tensor. All stores in one
            tensor are moved by one operation, but growing holds them twice. Default 1.
    Attributes:
        slots: Number of slots, taken and free.
        capacity: Cache positions per slot.
        window: Cache positions that the current forward pass writes.
        blocks: Memory of the keys and values.
        generation: Number of allocations so far; each changes the addresses of stores.
    """

    def __init__(self, layers: int, stores_per_block: int = 1) -> None:
        self.slots = 0
        self.capacity = 0
        self.generation = 0
        self.window = WriteWindow()
        self.blocks = BlockList(stores_per_block)
        self._free: list[int] = []
        self._mover: RowMover | None = None  # None after a reallocation
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    @property
    def position_bytes(self) -> int:
        """Return the bytes of a cache position in all layers; 0 before the first forward."""
        return sum(
            len(stores) * stores.shape[2] * stores.shape[4] * stores.element_size()
            for stores in self.blocks
        )

    def reserve(self, slots: int, capacity: int) -> None:
        """Grow to at least `slots` slots of `capacity` positions, with their content."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        new_slots = max(slots, self.slots)
        self._reallocate(slice(0, self.slots), new_slots, max(capacity, self.capacity))
        self._free.extend(range(self.slots, new_slots))
        self.slots = new_slots

    def compact(self, slots: int, capacity: int) -> dict[int, int]:
        """Resize the cache, with the taken slots in front.

        Args:
            slots: New number of slots; at least the taken ones.
            capacity: New number of positions per slot; at least the used ones.
        Returns:
            New slot of each taken slot.
        """
        taken = [slot for slot in range(self.slots) if slot not in self._free]
        self._reallocate(taken, slots, capacity)
        self.slots, self._free = slots, list(range(len(taken), slots))
        return {old: new for new, old in enumerate(taken)}

    def _reallocate(self, rows: slice | list[int], slots: int, capacity: int) -> None:
        self.blocks.resize(rows, slots, capacity)
        self.capacity = capacity
        for layer in self.layers:
            if layer.is_initialized:
                layer.find_stores()
        self._forget_addresses()

    def take_store(self, states: Tensor) -> tuple[int, int]:
        """Return the block and index of a store for a layer with these first states."""
        self._forget_addresses()
        return self.blocks.take(states, self.slots, self.capacity)

    def _forget_addresses(self) -> None:
        self._mover = None
        self.generation += 1

    def take(self) -> int:
        """Take the lowest free slot; grow by one slot if there is none."""
        if not self._free:
            self.reserve(self.slots + 1, self.capacity)
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot; its content will be overwritten."""
        self._free.append(slot)

    def exchange_free(self, taken: int, freed: int) -> None:
        """Record that a request moved from slot `freed` to the free slot `taken`."""
        self._free.remove(taken)
        self._free.append(freed)

    @property
    def taken(self) -> int:
        """Return the number of taken slots."""
        return self.slots - len(self._free)

    def begin(
        self, first: int, rows: int, slots: IntArray, positions: IntArray, in_order: bool
    ) -> None:
        """Set the window of the next forward pass; see `WriteWindow`."""
        visible = int(positions.max()) + 1
        if visible > self.capacity:
            self.reserve(self.slots, visible + SPARE_POSITIONS)
        self.window = WriteWindow(first, rows, positions, slots, visible, in_order)

    def flat_index(
        self, slots: IntArray, positions: IntArray, heads: int, device: torch.device
    ) -> Tensor:
        """Return row numbers in a store seen as [slots * heads * capacity, dim].

        Args:
            slots: Slots, [n, width] or [n, 1].
            positions: Cache positions, [n, width].
            heads: Number of key heads.
            device: Device of the result.
        Returns:
            int64 [n * heads * width], in this order.
        """
        key = (id(positions), heads, device)
        index = self.window.indices.get(key)
        if index is None:
            flat = (
                (slots[:, None, :] * heads + np.arange(heads)[:, None]) * self.capacity
            ) + positions[:, None, :]
            index = self.window.indices[key] = torch.from_numpy(flat.reshape(-1)).to(
                device, non_blocking=True
            )
        return index

    @torch.inference_mode()
    def write(self, slot: int, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Write states to the positions of one slot from `first` on, in one layer.

        Args:
            slot: Slot to write to.
            layer: Index of the layer.
            first: First cache position.
            keys: [heads, n, dim].
            values: [heads, n, dim].
        """
        stores = self.layers[layer]
        if not stores.is_initialized:
            stores.lazy_initialization(keys[None], values[None])
        for store, states in ((stores.keys, keys), (stores.values, values)):
            store[slot, :, first : first + states.shape[1]] = states

    @torch.inference_mode()
    def clear(self, slot: int, first: int) -> None:
        """Write zeros to the positions of a slot from `first` on."""
        for stores in self.blocks:
            stores[:, slot, :, first:] = 0

    def read(self, slot: int, length: int) -> list[tuple[Tensor, Tensor] | None]:
        """Return keys and values of the first `length` positions of a slot, as views.

        Returns:
            A pair [heads, length, dim] per layer; None for a layer that stores nothing.
        """
        return [
            (layer.keys[slot, :, :length], layer.values[slot, :, :length])
            if layer.is_initialized
            else None
            for layer in self.layers
        ]

    @torch.inference_mode()
    def move(self, slots: IntArray, source: IntArray, target: IntArray) -> None:
        """Copy cache positions within slots, in every layer.

        Args:
            slots: [rows, 1].
            source: [rows, m], ascending.
            target: [rows, m], ascending; none lies behind its source.
        """
        if self._mover is None:
            blocks = list(self.blocks)
            if not blocks:
                return
            self._mover = backend_of(blocks[0].device).row_mover(blocks)
        self._mover(slots.reshape(-1), source, target)

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for stores in self.blocks:
            stores[:, target, :, :length] = stores[:, source, :, :length]

    @torch.inference_mode()
    def swap(self, first: int, second: int, length: int) -> None:
        """Swap the first `length` positions of two slots."""
        for stores in self.blocks:
            before = stores[:, first, :, :length].clone()
            stores[:, first, :, :length] = stores[:, second, :, :length]
            stores[:, second, :, :length] = before
