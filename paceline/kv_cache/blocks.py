"""Allocate memory for keys and values.

A store contains either the keys or the values of one layer. A block is a tensor that is divided
into stores of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from paceline.kv_cache.memory import ZeroMemory
from paceline.kv_cache.regions import RegionMove


class CacheSize(NamedTuple):
    """Size of a cache or of its memory.

    Attributes:
        slots: Number of slots.
        positions: Number of cache positions per slot.
    """

    slots: int
    positions: int

    def fits(self, other: CacheSize) -> bool:
        """Return whether a cache of this size fits into memory of the other size."""
        return self.slots <= other.slots and self.positions <= other.positions

    def raised_to(self, needed: CacheSize) -> CacheSize:
        """Return a size that is at least `needed`.

        If the number of slots or positions is too small, it becomes twice the needed number.
        """
        return CacheSize(
            *(own if own >= least else 2 * least for own, least in zip(self, needed, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Store:
    """Keys or values of one layer.

    Attributes:
        tensor: Keys or values, [slots, heads, capacity, dim].
        rows: The same memory, viewed as [slots * heads * capacity + 1, dim]. In a forward pass,
            columns without a token write to the last row.
    """

    tensor: Tensor
    rows: Tensor


class Block:
    """A tensor that is divided into stores of the same shape.

    A store contains either the keys or the values of one layer.

    Args:
        like: Example of the keys or values to store, [batch, heads, queries, dim]. The stores
            have the same number of heads, dim, dtype and device as this tensor.
        num_stores: Number of stores.
        size: Size of each store: number of slots, and of cache positions per slot.
    Attributes:
        stores: All stores, [stores, slots, heads, cache positions per slot, dim].
    """

    def __init__(self, like: Tensor, num_stores: int, size: CacheSize) -> None:
        shape = size.slots, like.shape[1], size.positions
        self._memory = ZeroMemory(like, num_stores, math.prod(shape) + 1, like.shape[-1])
        self._rows = self._memory.tensor
        self.stores: Tensor = self._rows[:, :-1].view(num_stores, *shape, like.shape[-1])
        self._num_taken = 0

    def fits(self, states: Tensor) -> bool:
        """Return whether a free store has the right shape and dtype for keys or values.

        Args:
            states: Keys or values, [batch, heads, queries, dim].
        """
        shape, stores = states.shape, self.stores
        return self._num_taken < len(stores) and (shape[1], shape[3], states.dtype) == (
            stores.shape[2],
            stores.shape[4],
            stores.dtype,
        )

    def take(self) -> int:
        """Reserve the next free store for one layer's keys or values; return its index."""
        self._num_taken += 1
        return self._num_taken - 1

    def store(self, index: int) -> Store:
        """Return the store at this index of the block."""
        return Store(self.stores[index], self._rows[index])

    @property
    def taken(self) -> Tensor:
        """Return the reserved stores of the block, [stores, slots, heads, capacity, dim]."""
        return self.stores[: self._num_taken]

    def resized(self, slots_kept: slice | list[int], size: CacheSize, length: int) -> Block:
        """Copy some slots to a new block of a different size, and return the new block.

        Args:
            slots_kept: Slots to copy, in this order, to the first slots of the new block.
            size: New number of slots, and of cache positions per slot.
            length: Number of leading cache positions to copy per slot.
        """
        new = Block(self.stores[0], len(self.stores), size)
        new._num_taken = self._num_taken
        for old, store in zip(self.taken, new.taken, strict=True):
            content = old[slots_kept, :, :length]
            store[: len(content), :, :length] = content
        return new

    def move_slots(self, slots_kept: Sequence[int], length: int) -> None:
        """Move the kept slots to the first slots.

        Args:
            slots_kept: Slots to keep, in ascending order.
            length: Number of leading cache positions that are copied per slot.
        """
        for store in self.taken:
            for new, old in enumerate(slots_kept):
                if new != old:
                    store[new, :, :length] = store[old, :, :length]

    def use_huge_pages(self, positions: int) -> None:
        """Let the operating system use huge pages for the first positions of each head."""
        row_bytes = self._rows.stride(1) * self._rows.element_size()
        head_bytes = self.stores.shape[3] * row_bytes
        for store in range(self._num_taken):
            first = store * self._rows.shape[1] * row_bytes
            for head in range(self.stores.shape[1] * self.stores.shape[2]):
                begin = first + head * head_bytes
                self._memory.use_huge_pages(begin, begin + positions * row_bytes)

    def release(self, used: CacheSize, before: CacheSize) -> None:
        """Return memory to the system after the cache has shrunk from `before` to `used`."""
        row = self._rows.stride(1) * self._rows.element_size()
        _, _, heads, positions, _ = self.stores.shape
        for store in range(self._num_taken):
            first = store * self._rows.shape[1]
            if used.positions < before.positions:
                for head in range(min(used.slots, before.slots) * heads):
                    begin = first + head * positions
                    self._memory.release(
                        (begin + used.positions) * row, (begin + before.positions) * row
                    )
            if used.slots < before.slots:
                ends = (first + count * heads * positions for count in (used.slots, before.slots))
                self._memory.release(*(end * row for end in ends))

    def pack_regions(self, moves: Sequence[RegionMove]) -> None:
        """Move cache positions in this block as `Regions.pack` prescribes."""
        for store in self.taken:
            last = store[:, :, moves[-1].old].clone()  # earlier moves may overwrite it
            for move in moves[:-1]:
                if move.source - move.target >= move.length:
                    store[:, :, move.new] = store[:, :, move.old]
                elif move.source != move.target:
                    store[:, :, move.new] = store[:, :, move.old].clone()
            store[:, :, moves[-1].new] = last


class BlockList:
    """The blocks of one KV cache: tensors that are divided into stores.

    A store contains either the keys or the values of one layer.

    Args:
        stores_per_block: Number of stores in a new block.
    """

    def __init__(self, stores_per_block: int) -> None:
        self._stores_per_block = stores_per_block
        self._blocks: list[Block] = []

    def __iter__(self) -> Iterator[Tensor]:
        """Yield each block's reserved stores, [stores, slots, heads, capacity, dim]."""
        return (block.taken for block in self._blocks)

    def take(self, states: Tensor, size: CacheSize) -> tuple[int, int]:
        """Reserve a free store for one layer's keys or values; return the store's address.

        The address is a pair: the index of a block, and the index of the store in the block. If
        the last block has no free store that fits `states`, the function appends a block.

        Args:
            states: First keys or values of the layer, [batch, heads, queries, dim].
            size: Size of an appended block: number of slots, and of cache positions per slot.
        """
        if not self._blocks or not self._blocks[-1].fits(states):
            self._blocks.append(Block(states, self._stores_per_block, size))
        return len(self._blocks) - 1, self._blocks[-1].take()

    def store(self, address: tuple[int, int]) -> Store:
        """Return the store at an address (index of the block, index within the block)."""
        block, index = address
        return self._blocks[block].store(index)

    def resize(self, slots_kept: slice | list[int], size: CacheSize, length: int) -> None:
        """Reallocate the blocks one by one, so that at most one block is in memory twice.

        Args:
            slots_kept: Slots whose content is kept. The function copies their content, in this
                order, to the first slots of the new block.
            size: New number of slots, and of cache positions per slot.
            length: Number of leading cache positions to copy per slot.
        """
        for number, block in enumerate(self._blocks):
            self._blocks[number] = block.resized(slots_kept, size, length)

    def move_slots(self, slots_kept: Sequence[int], length: int) -> None:
        """Move the kept slots to the first slots.

        Args:
            slots_kept: Slots to keep, in ascending order.
            length: Number of leading cache positions that are copied per slot.
        """
        for block in self._blocks:
            block.move_slots(slots_kept, length)

    def release(self, used: CacheSize, before: CacheSize) -> None:
        """Return memory to the system after the cache has shrunk from `before` to `used`."""
        if not before.fits(used):
            for block in self._blocks:
                block.release(used, before)

    def use_huge_pages(self, positions: int) -> None:
        """Let the operating system use huge pages for the first positions of each head."""
        for block in self._blocks:
            block.use_huge_pages(positions)

    def pack_regions(self, moves: Sequence[RegionMove]) -> None:
        """Move cache positions in every block as `Regions.pack` prescribes."""
        for block in self._blocks:
            block.pack_regions(moves)
