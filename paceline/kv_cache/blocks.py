"""Allocate memory for keys and values, in blocks of stores with the same shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.kv_cache.regions import RegionMove


@dataclass(frozen=True, slots=True)
class Store:
    """Keys or values of one layer.

    Attributes:
        tensor: Keys or values, [slots, heads, capacity, dim].
        rows: The same memory, viewed as [slots * heads * capacity + 1, dim]. The last row is
            scratch space for columns without a token.
    """

    tensor: Tensor
    rows: Tensor


class Block:
    """A tensor that is divided into stores of the same shape.

    Args:
        like: Keys or values, [batch, heads, queries, dim]. The stores have the same heads, dim,
            dtype and device.
        num_stores: Number of stores.
        slots: Number of slots.
        capacity: Number of cache positions per slot.
    Attributes:
        stores: All stores, [stores, slots, heads, capacity, dim].
    """

    def __init__(self, like: Tensor, num_stores: int, slots: int, capacity: int) -> None:
        shape = slots, like.shape[1], capacity
        self._rows = _zeros(like, num_stores, math.prod(shape) + 1, like.shape[-1])
        self.stores: Tensor = self._rows[:, :-1].view(num_stores, *shape, like.shape[-1])
        self._num_taken = 0

    def fits(self, states: Tensor) -> bool:
        """Return whether a store is free for states [batch, heads, queries, dim]."""
        shape, stores = states.shape, self.stores
        return self._num_taken < len(stores) and (shape[1], shape[3], states.dtype) == (
            stores.shape[2],
            stores.shape[4],
            stores.dtype,
        )

    def take(self) -> int:
        """Take the next free store, and return its index."""
        self._num_taken += 1
        return self._num_taken - 1

    def store(self, index: int) -> Store:
        """Return the store at an index."""
        return Store(self.stores[index], self._rows[index])

    @property
    def taken(self) -> Tensor:
        """Return the stores in use, [stores, slots, heads, capacity, dim]."""
        return self.stores[: self._num_taken]

    def resized(self, slots_kept: slice | list[int], slots: int, capacity: int) -> Block:
        """Return a block with a different number of slots; copied slots come first.

        Args:
            slots_kept: Slots whose content is copied, in order.
            slots: New number of slots.
            capacity: New number of cache positions per slot.
        """
        new = self._empty(slots, capacity)
        common = min(capacity, self.stores.shape[3])
        for old, store in zip(self.taken, new.taken, strict=True):
            content = old[slots_kept, :, :common]
            store[: len(content), :, :common] = content
        return new

    def copy_regions(self, moves: Sequence[RegionMove], capacity: int) -> Block:
        """Return a block with a different capacity and the contents of some regions."""
        new = self._empty(len(self.stores[0]), capacity)
        for old, store in zip(self.taken, new.taken, strict=True):
            for move in moves:
                store[:, :, move.new] = old[:, :, move.old]
        return new

    def pack_regions(self, moves: Sequence[RegionMove]) -> None:
        """Carry out the moves that `Regions.pack` returned, within this block."""
        for store in self.taken:
            last = store[:, :, moves[-1].old].clone()  # other regions may overwrite it
            for move in moves[:-1]:
                if move.source - move.target >= move.length:
                    store[:, :, move.new] = store[:, :, move.old]
                elif move.source != move.target:
                    store[:, :, move.new] = store[:, :, move.old].clone()
            store[:, :, moves[-1].new] = last

    def _empty(self, slots: int, capacity: int) -> Block:
        new = Block(self.stores[0], len(self.stores), slots, capacity)
        new._num_taken = self._num_taken
        return new


class BlockList:
    """The blocks of one cache.

    Args:
        stores_per_block: Number of stores in a new block.
    """

    def __init__(self, stores_per_block: int) -> None:
        self._stores_per_block = stores_per_block
        self._blocks: list[Block] = []

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the used stores of each block, [stores, slots, heads, capacity, dim]."""
        return (block.taken for block in self._blocks)

    def take(self, states: Tensor, slots: int, capacity: int) -> tuple[int, int]:
        """Take a free store; return the index of its block, and its index in the block.

        Args:
            states: First keys or values of the layer, [batch, heads, queries, dim].
            slots: Number of slots.
            capacity: Number of cache positions per slot.
        """
        if not self._blocks or not self._blocks[-1].fits(states):
            self._blocks.append(Block(states, self._stores_per_block, slots, capacity))
        return len(self._blocks) - 1, self._blocks[-1].take()

    def store(self, address: tuple[int, int]) -> Store:
        """Return a store, given the index of its block and its index within the block."""
        block, index = address
        return self._blocks[block].store(index)

    def resize(self, slots_kept: slice | list[int], slots: int, capacity: int) -> None:
        """Resize the blocks one by one, so that at most one is in memory twice."""
        for number, block in enumerate(self._blocks):
            self._blocks[number] = block.resized(slots_kept, slots, capacity)

    def copy_regions(self, moves: Sequence[RegionMove], capacity: int) -> None:
        """Change the capacity of each block in turn.

        The contents of the regions in `moves` are kept.
        """
        for number, block in enumerate(self._blocks):
            self._blocks[number] = block.copy_regions(moves, capacity)

    def pack_regions(self, moves: Sequence[RegionMove]) -> None:
        """Carry out the moves that `Regions.pack` returned, in every block."""
        for block in self._blocks:
            block.pack_regions(moves)


def _zeros(like: Tensor, *shape: int) -> Tensor:
    # Not all forward passes that write to them are in inference mode.
    with torch.inference_mode(False):
        if like.device.type != "cpu":
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        # numpy's zeros take memory only once they are written, so that growing is quick.
        return (
            torch.from_numpy(np.zeros(math.prod(shape) * like.element_size(), dtype=np.uint8))
            .view(like.dtype)
            .view(shape)
        )
