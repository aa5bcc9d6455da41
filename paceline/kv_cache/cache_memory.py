"""Provide memory for the keys and values of a cache that grows.

Some operating systems provide physical memory only where a program writes (see `memory.py`). On
such a system, a cache on a CPU reserves address space for its maximum size when it stores its first
keys. The keys and values then never move: when the cache grows, it only uses more slots and
positions. On devices other than a CPU, engines preallocate the maximum size if there is enough
memory. In all other cases, a cache that outgrows its memory is copied to larger memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.kv_cache.blocks import BlockList, CacheSize
from paceline.kv_cache.memory import can_reserve
from paceline.kv_cache.settings import MAX_POSITIONS, MAX_SLOTS

DEFAULT_MAXIMUM = CacheSize(MAX_SLOTS, MAX_POSITIONS)
"""Size for which a cache reserves address space if no limit is set."""


class CacheMemory:
    """The memory of a KV cache: two stores per layer, one for keys and one for values.

    Args:
        num_stores: Number of stores, two per layer.
        stores_per_block: Number of stores in a block. A block is one tensor for several stores.
        maximum: Cache size for which address space is reserved.
    Attributes:
        blocks: Blocks that contain the keys and values.
        allocated: Number of slots and positions in each store; zero before the first keys arrive.
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

        A block is one tensor that contains several stores. Return the index of the store's block,
        and the index of the store within the block.

        Args:
            states: First keys or values of the layer, [batch, heads, queries, dim].
            size: Number of slots and positions that the cache needs.
        """
        if not self.allocated.slots:
            row_bytes = states.shape[1] * states.shape[3] * states.element_size()
            self.allocated = self._memory_for(size, self._num_stores * row_bytes, states.device)
        return self.blocks.take(states, self.allocated)

    def preallocate(self, maximum: CacheSize, has_memory: bool, used: CacheSize) -> bool:
        """Set the cache's maximum size; return whether keys and values have moved.

        Args:
            maximum: Maximum size. The cache allocates it if possible.
            has_memory: Whether a GPU has enough memory for the maximum size. On a CPU, the cache
                ignores this argument, and tries to reserve the memory.
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
        """Allocate memory for a new size; return whether keys and values have moved.

        Args:
            kept: Slots to keep, in ascending order. Their content moves to the first slots. None
                keeps all slots in place.
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
        """Allocate memory of a different size, and copy the used part of the kept slots."""
        slots = slice(0, copied.slots) if kept is None else kept
        self.blocks.resize(slots, size, copied.positions)
        self.allocated = size
