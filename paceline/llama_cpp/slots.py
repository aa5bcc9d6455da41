"""Assign the sequences of a llama.cpp cache to requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.request import Request
from paceline.errors import CapacityError
from paceline.llama_cpp.cells import DISCARDED, SequenceCells
from paceline.llama_cpp.settings import MAX_SEQUENCES


@dataclass(slots=True)
class NoCheckpoints:
    """An empty collection of state checkpoints, for targets that run in llama.cpp.

    Attributes:
        max_bytes: Memory limit for checkpoints, in bytes; not used.
    """

    max_bytes: int = 0


class SequenceSlots:
    """Assigns the slots of a llama.cpp cache to requests; slot n is sequence n + 1.

    Args:
        cells: Sequences of the llama.cpp cache.
    Attributes:
        checkpoints: Collection of state checkpoints, which is always empty.
        has_regions: True, because slots can differ in length.
        capacity: Number of cache positions of all slots together.
    """

    has_regions = True

    def __init__(self, cells: SequenceCells) -> None:
        self._cells = cells
        self._owner: dict[int, Request] = {}
        self._sizes: dict[int, int] = {}  # cache positions that belong to each slot
        self._num_slots = self.capacity = 0
        self.checkpoints = NoCheckpoints()

    def __len__(self) -> int:
        return self._num_slots

    @property
    def positions_taken(self) -> int:
        """Return the number of cache positions that belong to requests."""
        return sum(self._sizes.values())

    def length(self, request: Request) -> int:
        """Return the number of cache positions that belong to a request."""
        return self._sizes.get(request.slot, 0)

    def lengthen(self, request: Request, positions: int) -> None:
        """Increase a request's number of cache positions to at least `positions`."""
        self._sizes[request.slot] = max(positions, self._sizes[request.slot])

    def shorten(self, request: Request) -> None:
        """Free a request's cache positions beyond its cached tokens."""
        self._sizes[request.slot] = request.cached

    @property
    def num_taken(self) -> int:
        """Return the number of slots that belong to requests."""
        return len(self._owner)

    @property
    def num_spare_sequences(self) -> int:
        """Return the number of sequences that no slot uses."""
        return MAX_SEQUENCES - 1 - max(self._num_slots, max(self._owner, default=-1) + 1)

    @property
    def tokens(self) -> int:
        """Return the number of cached tokens in all slots."""
        return sum(request.cached for request in list(self._owner.values()))

    def take(self, request: Request) -> None:
        """Assign an empty slot to a request.

        Raises:
            CapacityError: llama.cpp supports no more sequences.
        """
        slot = next(slot for slot in range(MAX_SEQUENCES) if slot not in self._owner)
        if slot + 2 >= MAX_SEQUENCES:
            raise CapacityError(
                f"llama.cpp: got {slot} open requests; expected fewer. Lower \0max_batch\0 or"
                " \0keep_prefixes\0."
            )
        request.slot, request.cached = slot, 0
        self._owner[slot], self._sizes[slot] = request, 0
        self._num_slots = max(self._num_slots, slot + 1)
        self._cells.open(sequence_of(request))

    def free(self, request: Request) -> None:
        """Free the slot of a request, if it has one."""
        if request.slot >= 0:
            self._cells.close(sequence_of(request))
            del self._owner[request.slot], self._sizes[request.slot]
            request.slot = -1

    def inherit(self, request: Request, other: Request, length: int) -> None:
        """Transfer the slot of `other` to `request`, keeping `length` cache positions."""
        request.slot, other.slot = other.slot, -1
        self._owner[request.slot] = request
        request.cached = self._cells.cut(sequence_of(request), length)

    def copy(self, request: Request, other: Request, length: int) -> None:
        """Copy the first `length` cache positions of `other` to `request`."""
        self._cells.share(sequence_of(other), sequence_of(request), length)
        request.cached = length

    def resize(self, slots: int, positions: int) -> None:
        """Resize the cache to the given number of slots and total number of positions.

        Raises:
            MemoryError: There is not enough memory.
        """
        self._cells.reserve(positions)
        self._num_slots, self.capacity = slots, positions

    def gather(self, requests: Sequence[Request]) -> None:
        """Do nothing, because the requests of a step may be in any slots."""


def sequence_of(request: Request) -> int:
    """Return the sequence of an open request."""
    return DISCARDED + 1 + request.slot
