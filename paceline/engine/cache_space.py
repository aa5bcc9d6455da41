"""Manage the size of an engine's KV cache within a memory limit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from paceline.core.request import Request
from paceline.engine.settings import (
    ADMISSION_HEADROOM,
    CACHE_GROWTH_POSITIONS,
    MIN_REGION_GROWTH,
    POOL_GROWTH_FACTOR,
    POOL_HEADROOM_DIVISOR,
    REGION_GROWTH_DIVISOR,
    SPARE_NODE_POSITIONS,
    UNLIMITED_POSITIONS,
)
from paceline.errors import CapacityError
from paceline.kv_cache.settings import MAX_SLOTS, NODE_POSITIONS

if TYPE_CHECKING:
    from paceline.core.target import Target


class CacheSpace(ABC):
    """The memory of an engine's KV cache, which grows with the requests.

    Args:
        model: The target.
        max_slots: Maximum number of slots; None means no limit.
        max_bytes: Maximum size of keys, values and recurrent states in bytes; None means no limit.
        kept: Finished requests that are still in the cache.
        forget_oldest: Function that evicts the oldest finished request from the cache, and returns
            False if there is no finished request.
    """

    def __init__(
        self,
        model: Target,
        max_slots: int | None,
        max_bytes: int | None,
        kept: Collection[Request],
        forget_oldest: Callable[[], bool],
    ) -> None:
        self._model, self._max_slots, self._max_bytes = model, max_slots, max_bytes
        self._kept, self._forget_oldest = kept, forget_oldest
        self._num_prepared = UNLIMITED_POSITIONS

    @abstractmethod
    def admit(
        self, request: Request, active: Sequence[Request], waiting: Sequence[Request]
    ) -> bool:
        """Make room in the cache for another request; return False if memory runs out.

        Args:
            request: Request to admit.
            active: Requests that have a slot.
            waiting: Requests that are likely to be admitted next.
        """

    @abstractmethod
    def grow(self, active: Sequence[Request]) -> bool:
        """Make room for the next tokens of all requests; return False if memory runs out."""

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Return the number of allocated cache positions."""

    def preallocate(self, max_length: int) -> None:
        """Prepare the cache for the longest requests, so that it grows without copies.

        Args:
            max_length: Maximum number of tokens per request.
        Raises:
            CapacityError: The device has too little free memory for the largest cache that the
                limit allows.
        """
        slots = self._max_slots or MAX_SLOTS
        positions = min(max_length, self.max_positions(1)) + NODE_POSITIONS
        limit = self.max_positions(slots)
        self._num_prepared = positions * (slots if self._model.slots.has_regions else 1)
        try:
            self._model.preallocate(slots, positions, limit + limit // POOL_HEADROOM_DIVISOR)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"got a KV cache of up to {limit} tokens, for which the device has too little free"
                " memory. Lower \0cache_gib\0, \0max_batch\0 or \0max_length\0."
            ) from error

    def max_positions(self, slots: int) -> int:
        """Return the maximum number of cache positions within the memory limit.

        Args:
            slots: Number of slots. The recurrent states of each slot reduce the memory for
                positions.
        """
        if self._max_bytes is None:
            return UNLIMITED_POSITIONS
        left = self._max_bytes - slots * self._model.state_bytes
        if each := self._model.position_bytes:
            return max(0, left // each)
        return UNLIMITED_POSITIONS if left >= 0 else 0

    def _growth(self, size: int, needed: int) -> int:
        """Return the number of cache positions to allocate; at least `needed`.

        `size` is rounded up to a multiple of the growth step, but not beyond the number of
        positions for which `preallocate` has prepared memory.

        Args:
            size: Preferred number of positions.
            needed: Minimum number of positions.
        """
        step = self._model.growth_step
        return max(needed, min(-(-size // step) * step, self._num_prepared))

    def _resized(self, slots: int, positions: int, num_active: int) -> bool:
        try:
            self._model.slots.resize(slots, positions)
        except (MemoryError, RuntimeError) as error:
            short = isinstance(error, MemoryError | torch.OutOfMemoryError) or "alloc" in str(error)
            if not short or (num_active == 1 and not self._kept):
                raise
            return False
        return True

    def _preferred_slots(self, slots: int) -> int:
        """Return the number of slots to allocate, including spare slots.

        The spare slots make reallocation rare.

        Args:
            slots: Minimum number of slots.
        """
        current = len(self._model.slots)
        if slots <= current or self._max_slots is None:
            return max(slots, current)
        return max(slots, min(2 * current, self._max_slots))


class EqualSlots(CacheSpace):
    """Cache memory in which all slots have the length that the longest request needs."""

    @property
    def num_positions(self) -> int:
        """Return the number of allocated cache positions."""
        return len(self._model.slots) * self._model.capacity

    def admit(
        self, request: Request, active: Sequence[Request], waiting: Sequence[Request]
    ) -> bool:
        """Make room in the cache for another request; return False if memory runs out."""
        members = (*active, request)
        longest = max(map(_admission_length, members))
        final = max(member.max_length for member in members) + SPARE_NODE_POSITIONS
        return self._ensure(len(members), longest, min(longest + CACHE_GROWTH_POSITIONS, final))

    def grow(self, active: Sequence[Request]) -> bool:
        """Make room for the next tokens of all requests; return False if memory runs out."""
        longest = max((len(request) for request in active), default=0) + SPARE_NODE_POSITIONS
        if longest <= self._model.capacity:
            return True
        final = max(request.max_length for request in active) + SPARE_NODE_POSITIONS
        ideal = max(longest + CACHE_GROWTH_POSITIONS, 2 * self._model.capacity)
        return self._ensure(len(active), longest, min(ideal, final))

    def _ensure(self, num_active: int, positions: int, ideal: int) -> bool:
        """Allocate slots of a given length; return False if memory runs out.

        Before it returns False, the function evicts all finished requests.

        Args:
            num_active: Number of active requests.
            positions: Minimum number of cache positions per slot.
            ideal: Preferred number of cache positions per slot, if the cache has to grow.
        """
        while True:
            slots = num_active + len(self._kept)
            required = max([positions, *(request.cached for request in self._kept)])
            enough = self._model.capacity >= required
            size = self._model.capacity
            if not enough:
                size = self._growth(max(ideal, required), required)
            for count in (self._preferred_slots(slots), slots):
                limit = self.max_positions(count)
                if limit < UNLIMITED_POSITIONS:
                    limit //= count
                if limit >= required and self._resized(count, min(size, limit), num_active):
                    return True
            if not self._forget_oldest():
                return False


class SlotRegions(CacheSpace):
    """Cache memory in which each slot has the length that its request needs."""

    @property
    def num_positions(self) -> int:
        """Return the number of allocated cache positions."""
        return self._model.capacity

    def admit(
        self, request: Request, active: Sequence[Request], waiting: Sequence[Request]
    ) -> bool:
        """Make room for another request; return False if memory runs out.

        The caller then assigns a slot and cache positions to the request.
        """
        length = self._model.slots.length
        running = sum(max(length(member), _admission_length(member)) for member in active)
        held = sum(map(length, active))
        size, wish = region_length(request), sum(map(region_length, waiting))
        while True:
            slots, kept = len(active) + 1 + len(self._kept), sum(map(length, self._kept))
            required = running + kept + _admission_length(request)
            if required <= self.max_positions(slots) and self._provide(
                slots, held + kept + size, wish, len(active) + 1
            ):
                return True
            if not self._forget_oldest():
                return False

    def grow(self, active: Sequence[Request]) -> bool:
        """Make room for the next tokens of all requests; return False if memory runs out."""
        slots = self._model.slots
        return all(
            slots.length(request) >= len(request) + SPARE_NODE_POSITIONS
            or self._lengthen(request, len(active))
            for request in active
        )

    def _lengthen(self, request: Request, num_active: int) -> bool:
        """Lengthen a request's slot; if necessary, evict finished requests first.

        Returns:
            False if memory runs out.
        """
        slots = self._model.slots
        needed = len(request) + SPARE_NODE_POSITIONS
        while True:
            others = slots.positions_taken - slots.length(request)
            for size in (region_length(request), needed):
                if self._provide(len(slots), others + size, 0, num_active):
                    slots.lengthen(request, size)
                    return True
            if not self._forget_oldest():
                return False

    def _provide(self, slots: int, positions: int, wish: int, num_active: int) -> bool:
        """Allocate slots and positions; return False if memory runs out.

        Args:
            slots: Minimum number of slots.
            positions: Minimum number of cache positions in all slots together.
            wish: Number of additional positions that will probably be needed soon.
            num_active: Number of active requests.
        """
        current = self._model.capacity
        for count in (self._preferred_slots(slots), slots):
            limit = self.max_positions(count)
            if limit < positions:
                continue
            if current >= positions:
                sizes = [min(current, limit)]
            else:
                grown = max(positions + wish, int(POOL_GROWTH_FACTOR * current))
                sizes = [min(self._growth(size, positions), limit) for size in (grown, positions)]
            enough = count == len(self._model.slots) and sizes == [current]
            if enough or any(self._resized(count, size, num_active) for size in sizes):
                return True
        return False


def _admission_length(request: Request) -> int:
    """Return the number of cache positions that a request needs to be admitted.

    The number includes room for the next tokens.
    """
    return SPARE_NODE_POSITIONS + min(request.max_length, len(request) + ADMISSION_HEADROOM)


def region_length(request: Request) -> int:
    """Return the length of a request's new slot, in cache positions.

    The slot has room for the tokens so far and for further growth.
    """
    growth = max(MIN_REGION_GROWTH, len(request) // REGION_GROWTH_DIVISOR)
    return SPARE_NODE_POSITIONS + min(request.max_length, len(request) + growth)
