"""Which sequence has which slot of a cache, and bringing them where a forward wants them."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.request import Request
from paceline.kv_cache.slot_cache import SlotCache


class Slots:
    """The slots of one cache and their owners."""

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._owner: dict[int, Request] = {}  # by slot

    def __len__(self) -> int:
        """How many there are, taken and free."""
        return self._cache.slots

    @property
    def tokens(self) -> int:
        """Tokens in all of them."""
        return sum(request.cached for request in list(self._owner.values()))

    def take(self, request: Request) -> None:
        """Give `request` a free slot, an empty one; the cache grows by one where there is none."""
        request.slot, request.cached = self._cache.take(), 0
        self._owner[request.slot] = request

    def free(self, request: Request) -> None:
        """Free the slot of `request`, if it has one."""
        if request.slot >= 0:
            del self._owner[request.slot]
            self._cache.give_back(request.slot)
            request.slot = -1

    def inherit(self, request: Request, other: Request, length: int) -> None:
        """Give `request` the slot of `other`, which loses it, with the first `length` positions
        that are in it.
        """
        request.slot, request.cached, other.slot = other.slot, length, -1
        self._owner[request.slot] = request

    def copy(self, request: Request, other: Request, length: int) -> None:
        """Fill the first `length` positions of `request` with those of `other`; both have slots."""
        self._cache.copy(other.slot, request.slot, length)
        request.cached = length

    def resize(self, slots: int, positions: int) -> None:
        """Make it exactly so many slots of so many positions: enough for all that are taken and
        what they hold.
        """
        if slots >= self._cache.slots and positions >= self._cache.capacity:
            self._cache.reserve(slots, positions)
            return
        moved = self._cache.compact(slots, positions)
        self._owner = {moved[old]: request for old, request in self._owner.items()}
        for slot, request in self._owner.items():
            request.slot = slot

    def gather(self, requests: Sequence[Request]) -> None:
        """Bring sequences that are to step together into the first slots, in any order, moving
        few.
        """
        holes = iter(sorted(set(range(len(requests))) - {request.slot for request in requests}))
        for request in requests:
            if request.slot >= len(requests):
                self._move(request, next(holes))

    def compact_slots(self, requests: Sequence[Request]) -> None:
        """Bring sequences into consecutive slots, in their order. A no-op where they are."""
        slots = [request.slot for request in requests]
        if slots == list(range(slots[0], slots[0] + len(slots))):
            return
        for slot, request in enumerate(requests):
            if request.slot != slot:
                self._move(request, slot)

    def _move(self, request: Request, slot: int) -> None:
        """Bring a sequence into another slot; whoever is there gets its own."""
        other, old = self._owner.get(slot), request.slot
        self._cache.swap(old, slot, max(request.cached, other.cached if other else 0))
        self._owner[slot], request.slot = request, slot
        if other is not None:
            self._owner[old], other.slot = other, old
        else:
            del self._owner[old]
            self._cache.exchange_free(taken=slot, freed=old)
