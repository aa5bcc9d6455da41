"""Assign cache slots to requests, and move slots before a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.request import Request
from paceline.kv_cache.checkpoints import StateCheckpoints
from paceline.kv_cache.region_cache import RegionCache
from paceline.kv_cache.slot_cache import SlotCache


class Slots:
    """Assigns the slots of one cache to requests.

    Args:
        cache: Cache whose slots are assigned.
    Attributes:
        checkpoints: Saved copies of recurrent states, by request and text length.
    """

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self.checkpoints = StateCheckpoints(cache.state_layers)
        self._owner: dict[int, Request] = {}  # by slot

    def __len__(self) -> int:
        """Return the total number of slots."""
        return self._cache.slots

    @property
    def tokens(self) -> int:
        """Return the number of cached tokens in all slots."""
        return sum(request.cached for request in list(self._owner.values()))

    @property
    def has_regions(self) -> bool:
        """Return whether each slot can have a different length."""
        return isinstance(self._cache, RegionCache)

    @property
    def positions_taken(self) -> int:
        """Return the number of cache positions that belong to requests."""
        if isinstance(self._cache, RegionCache):
            return self._cache.regions.used
        return self._cache.taken * self._cache.capacity

    def length(self, request: Request) -> int:
        """Return the number of cache positions in a request's slot."""
        if isinstance(self._cache, RegionCache):
            return int(self._cache.regions.sizes[request.slot])
        return self._cache.capacity

    def lengthen(self, request: Request, positions: int) -> None:
        """Extend a request's slot to at least `positions` cache positions.

        If all slots have the same length, this method does nothing.
        """
        if isinstance(self._cache, RegionCache):
            self._cache.lengthen(request.slot, positions)

    def shorten(self, request: Request) -> None:
        """Free the cache positions after a request's tokens.

        If all slots have the same length, this method does nothing.
        """
        if isinstance(self._cache, RegionCache):
            self._cache.shorten(request.slot, request.cached)

    def take(self, request: Request) -> None:
        """Assign an empty slot to `request`; the cache grows if none is free."""
        request.slot, request.cached = self._cache.take(), 0
        self._owner[request.slot] = request

    def free(self, request: Request) -> None:
        """Free the slot of `request`, if it has one."""
        if request.slot >= 0:
            del self._owner[request.slot]
            self._cache.give_back(request.slot)
            self.checkpoints.drop(request)
            request.slot = -1

    def inherit(self, request: Request, other: Request, length: int) -> None:
        """Transfer the slot of `other` to `request`, keeping `length` cache positions.

        If the model has recurrent layers, `length` must be a result of `reusable_length`.
        """
        request.slot, request.cached, other.slot = other.slot, length, -1
        self._owner[request.slot] = request
        self.checkpoints.share(other, request, length)
        self.checkpoints.drop(other)
        self._set_states(request, other.cached)

    def copy(self, request: Request, other: Request, length: int) -> None:
        """Copy the first `length` cache positions of `other` to the slot of `request`.

        If the model has recurrent layers, `length` must be a result of `reusable_length`.
        """
        self._cache.copy(other.slot, request.slot, length)
        request.cached = length
        self.checkpoints.share(other, request, length)
        self._set_states(request, other.cached)

    def _set_states(self, request: Request, length: int) -> None:
        """Set a slot's recurrent states to those after `request.cached` tokens.

        Args:
            request: Request that has the slot.
            length: Number of tokens that the slot's current states cover.
        """
        if self._cache.state_layers and request.cached != length:
            self.checkpoints.restore(request, request.cached)

    def reusable_length(self, source: Request, length: int) -> int:
        """Return how many of the first `length` cached tokens another request can reuse.

        Args:
            source: Request with a slot.
            length: Number of leading tokens that the requests have in common.
        """
        if not self._cache.state_layers:
            return length
        longest = self.checkpoints.longest(source, length)
        return source.cached if longest < source.cached <= length else longest

    def resize(self, slots: int, positions: int) -> None:
        """Resize the cache, keeping the contents of all taken slots.

        Args:
            slots: Number of slots.
            positions: Number of cache positions per slot or, if `has_regions` is true, in all
                slots together.
        """
        moved = self._cache.resize(slots, positions)
        self._owner = {moved[old]: request for old, request in self._owner.items()}
        for slot, request in self._owner.items():
            request.slot = slot

    def gather(self, requests: Sequence[Request]) -> None:
        """Move the requests of a step to the first slots, with as few moves as possible."""
        taken = {request.slot for request in requests}
        if max(taken, default=0) < len(requests):
            return
        holes = iter(sorted(set(range(len(requests))) - taken))
        for request in requests:
            if request.slot >= len(requests):
                self._move(request, next(holes))

    def compact_slots(self, requests: Sequence[Request]) -> None:
        """Move requests to consecutive slots in the given order."""
        slots = [request.slot for request in requests]
        if slots == list(range(slots[0], slots[0] + len(slots))):
            return
        for slot, request in enumerate(requests):
            if request.slot != slot:
                self._move(request, slot)

    def _move(self, request: Request, slot: int) -> None:
        # If another request has this slot, the two requests exchange their slots.
        other, old = self._owner.get(slot), request.slot
        self._cache.swap(old, slot, max(request.cached, other.cached if other else 0))
        self._owner[slot], request.slot = request, slot
        if other is not None:
            self._owner[old], other.slot = other, old
        else:
            del self._owner[old]
            self._cache.exchange_free(taken=slot, freed=old)
