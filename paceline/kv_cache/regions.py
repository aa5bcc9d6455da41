"""Assign each slot a contiguous range of cache positions that fits its text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.core.tree import IntArray


class RegionMove(NamedTuple):
    """A move of a range of cache positions, in the keys and values of every layer.

    Attributes:
        source: First position of the range before the move.
        target: First position of the range after the move.
        length: Number of positions in the range.
    """

    source: int
    target: int
    length: int

    @property
    def old(self) -> slice:
        """Return the cache positions from which this move copies."""
        return slice(self.source, self.source + self.length)

    @property
    def new(self) -> slice:
        """Return the cache positions to which this move copies."""
        return slice(self.target, self.target + self.length)


class Regions:
    """Records which cache positions belong to each slot.

    Attributes:
        num_positions: Total number of cache positions, including free ones.
        first: First cache position of each slot, [slots].
        sizes: Number of cache positions of each slot, [slots]; 0 for a free slot.
    """

    def __init__(self) -> None:
        self.num_positions = 0
        self.first: IntArray = np.zeros(0, dtype=np.int64)
        self.sizes: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def used(self) -> int:
        """Return the number of cache positions that belong to slots."""
        return int(self.sizes.sum())

    @property
    def end(self) -> int:
        """Return the first cache position after the last region."""
        return int((self.first + self.sizes).max(where=self.sizes > 0, initial=0))

    def select(self, slots: list[int], num_slots: int) -> None:
        """Change the number of slots; keep the regions of some slots, and free all others.

        The slots that are kept get the new numbers 0, 1, 2, ... Their regions do not move.

        Args:
            slots: Slots to keep, in their new order.
            num_slots: New number of slots.
        """
        for name in ("first", "sizes"):
            selected = np.zeros(num_slots, dtype=np.int64)
            selected[: len(slots)] = getattr(self, name)[slots]
            setattr(self, name, selected)

    def swap(self, slot: int, other: int) -> None:
        """Exchange the regions of two slots."""
        for numbers in (self.first, self.sizes):
            numbers[[slot, other]] = numbers[[other, slot]]

    def widen(self, slot: int, size: int) -> bool:
        """Enlarge a slot's region in place to `size` positions.

        Return False if the slot has no region, or if the next positions are not free.
        """
        first = int(self.first[slot])
        if not self.sizes[slot]:
            return False
        later = self.first[(self.sizes > 0) & (self.first > first)]
        if first + size > int(later.min(initial=self.num_positions)):
            return False
        self.sizes[slot] = size
        return True

    def find_gap(self, size: int) -> int | None:
        """Return the start of the first gap of `size` free positions, or None."""
        last = 0
        for slot in np.argsort(self.first, kind="stable").tolist():
            if self.sizes[slot]:
                if self.first[slot] - last >= size:
                    return last
                last = int(self.first[slot] + self.sizes[slot])
        return last if self.num_positions - last >= size else None

    def assign(self, slot: int, first: int, size: int) -> None:
        """Assign the region [first, first + size) to a slot."""
        self.first[slot], self.sizes[slot] = first, size

    def pack(self, last: int) -> list[RegionMove]:
        """Move all slots' regions to the lowest positions; return the moves in order.

        Args:
            last: Slot whose region comes last. No other region moves to a higher position.
        """
        order = [slot for slot in np.argsort(self.first, kind="stable").tolist() if slot != last]
        moves, free = [], 0
        for slot in [*order, last]:
            if size := int(self.sizes[slot]):
                moves.append(RegionMove(int(self.first[slot]), free, size))
                self.first[slot] = free
                free += size
        return moves
