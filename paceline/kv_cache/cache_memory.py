"""Provide memory for the keys and values of a cache that grows.

Some systems take physical memory only once it is written (see `memory.py`). On such a system, a
cache on a CPU reserves address space for its maximum size when it stores the first keys. Its keys
and values then never move: growing only changes the number of slots and positions in use. On
devices other than a CPU, engines preallocate the maximum if there is enough memory. All other
caches are copied when they outgrow their memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kv_cache.blocks import BlockList, CacheSize
from paceline.kv_cache.memory import can_reserve
from paceline.kv_cache.settings import MAX_POSITIONS, MAX_SLOTS

DEFAULT_MAXIMUM = CacheSize(MAX_SLOTS, MAX_POSITIONS)
"""Size for which a cache reserves address space if nothing limits its requests."""


class CacheMemory:
    """The memory of a cache: one tensor (store) per layer for keys, one for values.

    Args:
        num_stores: Number of stores, two per layer.
        stores_per_block: Number of stores that share one tensor.
        maximum: Size for which address space is reserved.
    Attributes:
        blocks: Memory of the keys and values.
        allocated: Size of the stores; zero before the first keys.
    """

    def __init__(self, num_stores: int, stores_per_block: int, maximum: CacheSize) -> None:
        self.blocks = BlockList(stores_per_block)
        self.allocated = CacheSize(0, 0)
        self._num_stores, self._maximum = num_stores, maximum
        self._is_preallocated = False

    @property
    def position_bytes(self) -> int:
        """Return the size of a cache position in all layers, in bytes; initially 0."""
        return sum(
            len(stores) * stores.shape[2] * stores.shape[4] * stores.element_size()
            for stores in self.blocks
        )

    def take(self, states: Tensor, size: CacheSize) -> tuple[int, int]:
        """Reserve a store: memory for the keys or values of one layer.

        Return the index of its block, and its index within the block.

        Args:
            states: First keys or values of the layer, [batch, heads, queries, dim].
            size: Size of the cache.
        """
        if not self.allocated.slots:
            row_bytes = states.shape[1] * states.shape[3] * states.element_size()
            self.allocated = self._memory_for(size, self._num_stores * row_bytes, states.device)
        return self.blocks.take(states, self.allocated)

    def preallocate(self, maximum: CacheSize, has_memory: bool, used: CacheSize) -> bool:
        """Set the maximum size to allocate; return whether keys and values have moved.

        Args:
            maximum: Maximum size.
            has_memory: Whether the maximum may be allocated on a device other than a CPU.
            used: Current size of the cache.
        """
        self._maximum, self._is_preallocated = maximum, has_memory
        if not self.allocated.slots:
            return False
        size = self._memory_for(used, self.position_bytes, self._device)
        if size.fits(self.allocated):
            return False
        self._reallocate(None, size, used)
        return True

    def resize(self, kept: list[int] | None, size: CacheSize, used: CacheSize) -> bool:
        """Provide memory for a new size; return whether keys and values have moved.

        Args:
            kept: Slots whose content moves to the front, ascending; None if all slots stay.
            size: New size of the cache.
            used: Current size of the cache.
        """
        if not self.allocated.slots:
            return False  # the first keys and values determine the memory
        if not size.fits(self.allocated):
            memory = self._memory_for(size, self.position_bytes, self._device)
            self._reallocate(kept, memory, used._replace(positions=min(used[1], size[1])))
            return True
        if kept is not None:
            self.blocks.move_slots(kept, min(used.positions, size.positions))
        self.blocks.release(size, used)
        return False

    @property
    def _device(self) -> torch.device:
        return next(iter(self.blocks)).device

    def _memory_for(
        self, needed: CacheSize, position_bytes: int, device: torch.device
    ) -> CacheSize:
        """Return the size to allocate: the maximum if possible, else the needed size.

        Args:
            needed: Size that the cache needs immediately.
            position_bytes: Size of a cache position in all layers, in bytes.
            device: Device of the keys and values.
        """
        maximum = self._maximum.raised_to(needed)
        if device.type != "cpu":
            return maximum if self._is_preallocated and maximum == self._maximum else needed
        num_bytes = maximum.slots * maximum.positions * position_bytes
        return maximum if can_reserve(num_bytes) else needed

    def _reallocate(self, kept: list[int] | None, size: CacheSize, copied: CacheSize) -> None:
        """Allocate memory of another size, and copy the used part of some slots to it."""
        slots = slice(0, copied.slots) if kept is None else kept
        self.blocks.resize(slots, size, copied.positions)
        self.allocated = size
