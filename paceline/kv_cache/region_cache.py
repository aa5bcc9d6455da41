"""Store keys and values in slots of different lengths.

Each head has one row of cache positions, which is divided into a region for each slot. A region
that becomes too short is extended or moved. A long text therefore does not enlarge the slots of
short texts. A region is placed in the first gap that is long enough, so the written positions stay
at the front of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from paceline.core.tree import IntArray
from paceline.kv_cache.blocks import CacheSize, Store
from paceline.kv_cache.cache_memory import DEFAULT_MAXIMUM
from paceline.kv_cache.regions import Regions
from paceline.kv_cache.settings import POOL_GROWTH, REGION_SLACK, SPARE_POSITIONS
from paceline.kv_cache.slot_cache import SlotCache
from paceline.kv_cache.slot_layer import WriteWindow
from paceline.kv_cache.state_layer import StateKind

_SHARED = np.zeros((1, 1), dtype=np.int64)
"""Slot indices for `WriteWindow`: the whole store is a single slot, with index 0."""


class RegionCache(SlotCache):
    """KV cache in which each slot has a region of cache positions.

    The keys and the values of a layer are tensors [1, heads, positions of all slots, dim].
    Attention finds the keys of a request at the address of the tensor plus row * stride(0). In
    these tensors, stride(0) is a single cache position. The row of a request is therefore the cache
    position at which the region of its slot begins.

    Args:
        layers: Number of decoder layers.
        stores_per_block: Number of stores that share one tensor; a store contains the keys or the
            values of one layer. Default 1.
        states: Kind of recurrent state in each recurrent layer, by layer index; None means no
            recurrent layers.
        maximum: Number of slots, and of positions per slot, for which address space is reserved.
            The slots share the total number of positions.
        growth_step: The cache grows by multiples of this number of cache positions.
    Attributes:
        growth_step: The cache grows by multiples of this number of cache positions.
        capacity: Number of cache positions of all slots together.
        regions: The region of each slot.
    """

    def __init__(
        self,
        layers: int,
        stores_per_block: int = 1,
        states: Mapping[int, StateKind] | None = None,
        maximum: CacheSize = DEFAULT_MAXIMUM,
        growth_step: int = 1,
    ) -> None:
        pool = CacheSize(1, maximum.slots * maximum.positions)
        super().__init__(layers, stores_per_block, states, pool)
        self.regions = Regions()
        self.growth_step = growth_step
        self._reserved = 0  # number of positions per slot that `reserve` requested

    @property
    def _size(self) -> CacheSize:
        """Return the cache size in use, as if all slots formed a single slot."""
        return CacheSize(1, self.capacity)

    def preallocate(self, slots: int, positions: int, limit: int) -> None:
        """Set the maximum size; see `SlotCache.preallocate`."""
        self._preallocate(CacheSize(1, min(slots * positions, limit)), True)

    def reserve(self, slots: int, capacity: int) -> None:
        """Allocate at least `slots` slots, each with room for `capacity` tokens."""
        self._reserved = max(self._reserved, capacity)
        new_slots = max(slots, self.slots)
        self.resize(new_slots, max(self.capacity, new_slots * capacity))

    def resize(self, slots: int, capacity: int) -> dict[int, int]:
        """Change the number of slots and the total number of cache positions.

        If the number of slots decreases, the taken slots are renumbered from 0.

        Args:
            slots: New number of slots; at least the number of taken slots.
            capacity: New number of positions of all slots together; at least the number in use.
        Returns:
            New index of each taken slot, by its old index.
        """
        kept = list(range(self.slots)) if slots >= self.slots else self._taken_slots()
        if slots != self.slots:
            for layer in self.state_layers.values():
                layer.resize(kept, slots)
            self.regions.select(kept, slots)
        if slots >= self.slots:
            self._free.extend(range(self.slots, slots))
            self.slots = slots
            moved = {slot: slot for slot in self._taken_slots()}
        else:
            moved = self._renumber(kept, slots)
        self._set_capacity(capacity)
        return moved

    @torch.inference_mode()
    def _set_capacity(self, capacity: int) -> None:
        """Set the total number of cache positions, and allocate memory for them.

        The memory uses huge pages if possible. Huge pages waste no memory here, because all
        positions will soon be written.
        """
        if capacity < self.regions.end:
            self._pack(0)
        if self._memory.resize(None, CacheSize(1, capacity), self._size):
            self._find_stores()
        self.regions.num_positions = self.capacity = capacity
        self.blocks.use_huge_pages(capacity)

    def _add_slot(self) -> None:
        self.resize(self.slots + 1, self.capacity)

    def take_store(self, states: Tensor) -> tuple[int, int]:
        """Reserve memory for a layer; see `SlotCache.take_store`."""
        address = super().take_store(states)
        self.blocks.use_huge_pages(self.capacity)
        return address

    def store(self, address: tuple[int, int]) -> Store:
        """Return the store (keys or values of one layer) at an address.

        Args:
            address: Index of a memory block, and index of the store within this block.
        Returns:
            The store. In its tensor, stride(0) is one cache position, so row r of the tensor begins
            at cache position r.
        """
        store = self.blocks.store(address)
        _, *strides = store.tensor.stride()
        rows = store.tensor.as_strided(store.tensor.shape, (strides[1], *strides))
        return Store(rows, store.rows)

    def rows_of(self, slots: IntArray) -> IntArray:
        """Return the row of a key or value tensor at which each slot begins."""
        return self.regions.first[slots]

    def give_back(self, slot: int) -> None:
        """Free a slot and its cache positions."""
        super().give_back(slot)
        self.regions.sizes[slot] = 0

    def lengthen(self, slot: int, size: int) -> None:
        """Extend a slot to at least `size` positions, moving its region if necessary."""
        regions = self.regions
        old = int(regions.sizes[slot])
        if size <= old or regions.widen(slot, size):
            return
        needed = regions.used - old + size
        target = regions.find_gap(size)
        if target is None and needed > self.capacity:
            self._set_capacity(self._grown(needed))
            if regions.widen(slot, size):
                return
            target = regions.find_gap(size)
        if target is None:
            self._pack(slot)
            if regions.widen(slot, size):
                return
            target = regions.find_gap(size)
            assert target is not None, "there are enough positions"
        if old:
            self._copy(int(regions.first[slot]), target, old)
        regions.assign(slot, target, size)

    def _grown(self, needed: int) -> int:
        """Return the capacity to allocate for `needed` positions, with room for growth."""
        grown = max(needed, int(POOL_GROWTH * self.capacity), self.slots * self._reserved)
        grown = -(-grown // self.growth_step) * self.growth_step
        allocated = self.allocated.positions
        return grown if needed > allocated else min(grown, allocated)

    def shorten(self, slot: int, size: int) -> None:
        """Free all positions of a slot except the first `size`."""
        self.regions.sizes[slot] = min(size, int(self.regions.sizes[slot]))

    @torch.inference_mode()
    def _pack(self, last: int) -> None:
        if moves := self.regions.pack(last):
            self.blocks.pack_regions(moves)

    @torch.inference_mode()
    def _copy(self, source: int, target: int, length: int) -> None:
        for stores in self.blocks:
            stores[:, :, :, target : target + length] = stores[:, :, :, source : source + length]

    def begin(
        self, first: int, rows: int, slots: IntArray, positions: IntArray, in_order: bool
    ) -> None:
        """Set which cache positions the next forward pass writes; see `WriteWindow`."""
        self._lengthen_all(slots, positions)
        begins = self.regions.first
        visible = int(positions.max()) + 1
        key_rows, start, gathered = begins[first : first + rows], 0, None
        if rows == 1:
            key_rows, start = np.zeros(1, dtype=np.int64), int(begins[first])
        elif len(positions) > 1:
            sizes = self.regions.sizes[first : first + rows, None]
            # The mask hides positions after a region. The region's first position, which contains
            # finite numbers, takes their place.
            seen = np.arange(visible)
            gathered = key_rows[:, None] + np.where(seen < sizes, seen, 0)
        self.window = WriteWindow(
            0,
            1,
            positions + begins[slots],
            _SHARED,
            visible,
            in_order and rows == 1,
            start,
            key_rows,
            gathered,
        )

    def _lengthen_all(self, slots: IntArray, positions: IntArray) -> None:
        """Extend the slots of a forward pass to the positions that the pass writes."""
        short = positions >= self.regions.sizes[slots]
        if not short.any():
            return
        all_slots = np.broadcast_to(slots, positions.shape)
        for slot in np.unique(all_slots[short]).tolist():
            needed = int(positions[all_slots == slot].max()) + 1
            spare = SPARE_POSITIONS + needed // REGION_SLACK
            self.lengthen(slot, max(needed + spare, self._reserved))

    def write(self, slot: int, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Write one layer's keys and values to a slot, starting at position `first`."""
        self.lengthen(slot, first + keys.shape[1])
        super().write(0, layer, first + int(self.regions.first[slot]), keys, values)

    @torch.inference_mode()
    def clear(self, slot: int, first: int) -> None:
        """Write zeros to the positions of a slot, starting at `first`."""
        begin, size = int(self.regions.first[slot]), int(self.regions.sizes[slot])
        for stores in self.blocks:
            stores[:, :, :, begin + first : begin + size] = 0

    def read(self, slot: int, length: int) -> list[tuple[Tensor, Tensor] | None]:
        """Return views of the keys and values in a slot's first `length` positions."""
        begin = int(self.regions.first[slot])
        pairs = super().read(0, begin + length)
        return [pair and (pair[0][:, begin:], pair[1][:, begin:]) for pair in pairs]

    def move(self, slots: IntArray, source: IntArray, target: IntArray) -> None:
        """Copy cache positions within slots, in every layer."""
        begins = self.regions.first[slots]
        super().move(np.zeros_like(slots), source + begins, target + begins)

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a slot's first `length` positions and recurrent states to another slot."""
        self.lengthen(target, length)
        if length:
            first = self.regions.first
            self._copy(int(first[source]), int(first[target]), length)
        for layer in self.state_layers.values():
            layer.copy(source, target)

    @torch.inference_mode()
    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the cache positions and the recurrent states of two slots."""
        self.regions.swap(first, second)
        for layer in self.state_layers.values():
            layer.swap(first, second)
