"""Store keys, values and recurrent states in preallocated slots, one per request.

A forward pass writes the states of its query tokens after the cached tokens of each slot.
`SlotCache.move` then moves the rows of accepted tree nodes directly after the cached tokens; the
next forward pass overwrites the rows of the other nodes. To roll back, the engine only lowers the
number of cached tokens. Layers with a sliding window also store all positions, so rejected tokens
do not evict other tokens; the mask applies the window.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from paceline.backend.interface import RowMover
from paceline.backend.resolve import backend_of
from paceline.core.tree import IntArray
from paceline.kv_cache.blocks import CacheSize, Store
from paceline.kv_cache.cache_memory import DEFAULT_MAXIMUM, CacheMemory
from paceline.kv_cache.settings import SPARE_POSITIONS
from paceline.kv_cache.slot_layer import SlotLayer, WriteWindow
from paceline.kv_cache.state_layer import MixedLayer, StateKind, StateLayer


class SlotCache(Cache):  # type: ignore[misc]
    """KV cache of all layers, divided into slots of equal length.

    Args:
        layers: Number of decoder layers.
        stores_per_block: Number of stores that share one tensor; a store contains the keys or the
            values of one layer. One operation moves all stores of a tensor. While the cache is
            copied, these stores use twice their memory. Default 1.
        states: Kind of state in each recurrent layer, by layer index; None if there are none.
        maximum: Size for which the cache reserves address space. If the cache grows beyond this
            size, it is copied.
    Attributes:
        slots: Total number of slots.
        capacity: Number of cache positions per slot.
        window: Cache positions that the current forward pass writes.
        blocks: Memory of the keys and values.
        generation: Number of allocations so far. Each allocation changes the addresses of the
            stores.
        state_layers: Layers with recurrent states, by index.
    """

    def __init__(
        self,
        layers: int,
        stores_per_block: int = 1,
        states: Mapping[int, StateKind] | None = None,
        maximum: CacheSize = DEFAULT_MAXIMUM,
    ) -> None:
        self.slots = self.capacity = self.generation = 0
        self.window = WriteWindow()
        self._memory = CacheMemory(2 * layers, stores_per_block, maximum)
        self.blocks = self._memory.blocks
        self._free: list[int] = []
        self._mover: RowMover | None = None  # None after a reallocation
        self.state_layers = {
            index: (MixedLayer if kind.has_keys else StateLayer)(self, kind.num_states)
            for index, kind in (states or {}).items()
        }
        super().__init__(
            layers=[self.state_layers.get(index) or SlotLayer(self) for index in range(layers)]
        )

    @property
    def position_bytes(self) -> int:
        """Return the size of a cache position in all layers, in bytes; initially 0."""
        return self._memory.position_bytes

    @property
    def allocated(self) -> CacheSize:
        """Return the size for which memory is allocated; it may exceed the cache's size."""
        return self._memory.allocated

    @property
    def state_bytes(self) -> int:
        """Return the size of a slot's recurrent states in bytes; 0 before any are stored."""
        return sum(layer.slot_bytes for layer in self.state_layers.values())

    def reserve(self, slots: int, capacity: int) -> None:
        """Grow to at least `slots` slots of at least `capacity` positions each."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        new_slots = max(slots, self.slots)
        self._set_size(None, CacheSize(new_slots, max(capacity, self.capacity)))
        self._free.extend(range(self.slots, new_slots))
        self.slots = new_slots

    def preallocate(self, slots: int, positions: int, limit: int) -> None:
        """Set the maximum size, which the cache allocates if possible.

        Args:
            slots: Maximum number of slots.
            positions: Maximum number of cache positions per slot.
            limit: Maximum number of cache positions in all slots together.
        """
        self._preallocate(CacheSize(slots, positions), slots * positions <= limit)

    def _preallocate(self, maximum: CacheSize, has_memory: bool) -> None:
        if self._memory.preallocate(maximum, has_memory, self._size):
            self._find_stores()

    @property
    def _size(self) -> CacheSize:
        """Return the current numbers of slots and of cache positions per slot."""
        return CacheSize(self.slots, self.capacity)

    def resize(self, slots: int, capacity: int) -> dict[int, int]:
        """Resize the cache; when shrinking, move the taken slots to the front.

        Args:
            slots: New number of slots; at least the number of taken slots.
            capacity: New number of positions per slot; at least the number in use.
        Returns:
            New index of each taken slot, by its old index.
        """
        if slots >= self.slots and capacity >= self.capacity:
            self.reserve(slots, capacity)
            return {slot: slot for slot in self._taken_slots()}
        taken = self._taken_slots()
        self._set_size(taken, CacheSize(slots, capacity))
        return self._renumber(taken, slots)

    def _taken_slots(self) -> list[int]:
        free = set(self._free)
        return [slot for slot in range(self.slots) if slot not in free]

    def _renumber(self, taken: list[int], slots: int) -> dict[int, int]:
        """Renumber the taken slots from 0, and return the new numbers."""
        self.slots, self._free = slots, list(range(len(taken), slots))
        return {old: new for new, old in enumerate(taken)}

    def _set_size(self, kept: list[int] | None, size: CacheSize) -> None:
        """Set the number of cache positions per slot, and allocate memory if necessary.

        Args:
            kept: Slots that move to the front, ascending; None if all slots stay.
            size: New number of slots, and of cache positions per slot.
        """
        if self._memory.resize(kept, size, self._size):
            self._find_stores()
        for states in self.state_layers.values():
            states.resize(slice(0, self.slots) if kept is None else kept, size.slots)
        self.capacity = size.positions

    def _find_stores(self) -> None:
        """Make every layer look up its key and value tensors after a reallocation."""
        for layer in self.layers:
            if isinstance(layer, SlotLayer) and layer.is_initialized:
                layer.find_stores()
        self._forget_addresses()

    def take_store(self, states: Tensor) -> tuple[int, int]:
        """Reserve memory for one layer's keys or values.

        Args:
            states: Keys or values with the required number of heads, head size and dtype.
        Returns:
            Index of the block (a tensor of several stores), and index of the store in the block.
        """
        self._forget_addresses()
        return self._memory.take(states, self._size)

    def store(self, address: tuple[int, int]) -> Store:
        """Return one layer's keys or values, given the address that `take_store` returned."""
        return self.blocks.store(address)

    def rows_of(self, slots: IntArray) -> IntArray:
        """Return the row of a layer's key or value tensor at which each slot begins."""
        return slots

    def _forget_addresses(self) -> None:
        self._mover = None
        self.generation += 1

    def take(self) -> int:
        """Take the lowest free slot and clear its states; add a slot if none is free."""
        if not self._free:
            self._add_slot()
        slot = min(self._free)
        self._free.remove(slot)
        self.clear_states(slot)
        return slot

    def _add_slot(self) -> None:
        self.reserve(self.slots + 1, self.capacity)

    @torch.inference_mode()
    def clear_states(self, slot: int) -> None:
        """Reset a slot's recurrent states to those of an empty text."""
        for layer in self.state_layers.values():
            layer.clear(slot)

    def give_back(self, slot: int) -> None:
        """Free a slot, whose content may then be overwritten."""
        self._free.append(slot)

    def exchange_free(self, taken: int, freed: int) -> None:
        """Record that a request has moved from slot `freed` to `taken`, which was free."""
        self._free.remove(taken)
        self._free.append(freed)

    @property
    def taken(self) -> int:
        """Return the number of taken slots."""
        return self.slots - len(self._free)

    def begin(
        self, first: int, rows: int, slots: IntArray, positions: IntArray, in_order: bool
    ) -> None:
        """Set which cache positions the next forward pass writes; see `WriteWindow`."""
        visible = int(positions.max()) + 1
        if visible > self.capacity:
            self.reserve(self.slots, visible + SPARE_POSITIONS)
        self.window = WriteWindow(
            first, rows, positions, slots, visible, in_order, key_rows=np.arange(rows)
        )

    def flat_index(
        self, slots: IntArray, positions: IntArray, heads: int, device: torch.device
    ) -> Tensor:
        """Return each cache position's row in a key or value tensor; see `row_index`."""
        return self.window.row_index(slots, positions, heads, self.allocated.positions, device)

    @torch.inference_mode()
    def write(self, slot: int, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Write one layer's keys and values to a slot, starting at position `first`.

        Args:
            slot: Slot to write to.
            layer: Index of the layer.
            first: First cache position.
            keys: Keys, [heads, n, dim].
            values: Values, [heads, n, dim].
        """
        stores = self.layers[layer]
        if not stores.is_initialized:
            stores.lazy_initialization(keys[None], values[None])
        for store, states in ((stores.keys, keys), (stores.values, values)):
            store[slot, :, first : first + states.shape[1]] = states

    @torch.inference_mode()
    def clear(self, slot: int, first: int) -> None:
        """Write zeros to the positions of a slot, starting at `first`."""
        for stores in self.blocks:
            stores[:, slot, :, first : self.capacity] = 0

    def read(self, slot: int, length: int) -> list[tuple[Tensor, Tensor] | None]:
        """Return views of the keys and values in a slot's first `length` positions.

        Returns:
            Keys and values of each layer, each [heads, length, dim]; None for a layer without a
            cache.
        """
        return [
            (layer.keys[slot, :, :length], layer.values[slot, :, :length])
            if isinstance(layer, SlotLayer) and layer.is_initialized
            else None
            for layer in self.layers
        ]

    @torch.inference_mode()
    def move(self, slots: IntArray, source: IntArray, target: IntArray) -> None:
        """Copy cache positions within slots, in every layer.

        Args:
            slots: Slot of each row, [rows, 1].
            source: Source positions, [rows, m], ascending.
            target: Target positions, [rows, m], ascending; each is at most its source position.
        """
        if self._mover is None:
            blocks = list(self.blocks)
            if not blocks:
                return
            self._mover = backend_of(blocks[0].device).row_mover(blocks)
        self._mover(slots.reshape(-1), source, target)

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions and the states of one slot to another."""
        for stores in self.blocks:
            stores[:, target, :, :length] = stores[:, source, :, :length]
        for layer in self.state_layers.values():
            layer.copy(source, target)

    @torch.inference_mode()
    def swap(self, first: int, second: int, length: int) -> None:
        """Swap the first `length` positions and the states of two slots."""
        for stores in self.blocks:
            before = stores[:, first, :, :length].clone()
            stores[:, first, :, :length] = stores[:, second, :, :length]
            stores[:, second, :, :length] = before
        for layer in self.state_layers.values():
            layer.swap(first, second)
