"""Which sequence has which slot of a cache, and bringing them where a forward wants them."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

from paceline.engine.kv_cache import SlotCache
from paceline.engine.sequence import Sequence


class Slots:
    """The slots of one cache and their owners."""

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._owner: dict[int, Sequence] = {}  # by slot

    def __len__(self) -> int:
        """How many there are, taken and free."""
        return self._cache.slots

    @property
    def tokens(self) -> int:
        """Tokens in all of them."""
        return sum(seq.cached for seq in list(self._owner.values()))

    def take(self, seq: Sequence) -> None:
        """Give `seq` a free slot, an empty one; the cache grows by one where there is none."""
        seq.slot, seq.cached = self._cache.take(), 0
        self._owner[seq.slot] = seq

    def free(self, seq: Sequence) -> None:
        """Free the slot of `seq`, if it has one."""
        if seq.slot >= 0:
            del self._owner[seq.slot]
            self._cache.give_back(seq.slot)
            seq.slot = -1

    def inherit(self, seq: Sequence, other: Sequence, length: int) -> None:
        """Give `seq` the slot of `other`, which loses it, with the first `length` positions that are in it."""
        seq.slot, seq.cached, other.slot = other.slot, length, -1
        self._owner[seq.slot] = seq

    def copy(self, seq: Sequence, other: Sequence, length: int) -> None:
        """Fill the first `length` positions of `seq` with those of `other`; both have slots."""
        self._cache.copy(other.slot, seq.slot, length)
        seq.cached = length

    def resize(self, slots: int, positions: int) -> None:
        """Make it exactly so many slots of so many positions: enough for all that are taken and what they hold."""
        if slots >= self._cache.slots and positions >= self._cache.capacity:
            self._cache.reserve(slots, positions)
            return
        moved = self._cache.compact(slots, positions)
        self._owner = {moved[old]: seq for old, seq in self._owner.items()}
        for slot, seq in self._owner.items():
            seq.slot = slot

    def gather(self, seqs: ListLike[Sequence]) -> None:
        """Bring sequences that are to step together into the first slots, in any order, moving few."""
        holes = iter(sorted(set(range(len(seqs))) - {seq.slot for seq in seqs}))
        for seq in seqs:
            if seq.slot >= len(seqs):
                self._move(seq, next(holes))

    def line_up(self, seqs: ListLike[Sequence]) -> None:
        """Bring sequences into consecutive slots, in their order. A no-op where they are."""
        slots = [seq.slot for seq in seqs]
        if slots == list(range(slots[0], slots[0] + len(slots))):
            return
        for slot, seq in enumerate(seqs):
            if seq.slot != slot:
                self._move(seq, slot)

    def _move(self, seq: Sequence, slot: int) -> None:
        """Bring a sequence into another slot; whoever is there gets its own."""
        other, old = self._owner.get(slot), seq.slot
        self._cache.swap(old, slot, max(seq.cached, other.cached if other else 0))
        self._owner[slot], seq.slot = seq, slot
        if other is not None:
            self._owner[old], other.slot = other, old
        else:
            del self._owner[old]
            self._cache.exchange_free(taken=slot, freed=old)
