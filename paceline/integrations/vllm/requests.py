"""Which row of vLLM's batch is which request. vLLM tells a drafter no names, so the tokens do: a
request is its text so far.

Each call shows the rows of a batch, each with its whole text and how many of its tokens are new:

    known, of the last call       rows now                         means
    A   1 2 3                     0    1 2 3 | 4                   A goes on
    B   7 8                       1    5 6 | 9                     new; 5 6 is its prompt
                                                                   B is not there: put back to wait,
                                                                   or finished

A request that vLLM has moved to another row, or has put back to wait and computed again, still has
its text. Of two with the same text either may be taken for the other: what a drafter knows of a
request follows from its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree

# calls without a request after which it counts as finished; one that comes back later is begun anew
PATIENCE = 32
_PARAMS = SamplingParams(ignore_eos=True)

IdArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of vLLM's batch that has new tokens.

    Attributes:
        place: in the batch. text: prompt and answer, the new tokens included; a view of vLLM's.
            new: how many are new.
    """

    place: int
    text: IdArray
    new: int

    @property
    def known(self) -> int:
        """Tokens of the text before the new ones."""
        return len(self.text) - self.new


class TrackedRequest:
    """A request as far as the drafter knows it.

    Attributes:
        seq: its text, for the drafter. place: its row in the batch. unseen: calls since it was
            there.
        chain: what was drafted last, whole. sent: tokens of it that vLLM was given.
    """

    def __init__(self, row: BatchRow) -> None:
        self.request = Request(row.text[: row.known].tolist(), _PARAMS)
        self.place = row.place
        self.unseen = 0
        self.chain: DraftTree = EMPTY_TREE
        self.sent = 0
        self._ids: IdArray = row.text[: row.known].copy()
        self._room = self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def goes_on_in(self, row: BatchRow, gap: int) -> bool:
        """Whether the text of `row` is this one and the new tokens, with at most `gap` tokens
        between them.
        """
        missed = row.known - len(self)
        return 0 <= missed <= gap and np.array_equal(row.text[: len(self)], self._ids)

    def extend(self, row: BatchRow, end: int) -> list[int]:
        """Take over the first `end` tokens of `row`, which goes on with this text; returns those
        that were not known.
        """
        begin = len(self)
        if end > len(self._room):
            self._room = np.empty(2 * end, dtype=np.int32)
            self._room[:begin] = self._ids
        self._room[begin:end] = row.text[begin:end]
        self._ids = self._room[:end]
        fresh: list[int] = row.text[begin:end].tolist()
        self.request.token_ids += fresh
        return fresh


class Requests:
    """All requests that may go on."""

    def __init__(self) -> None:
        self._known: dict[int, TrackedRequest] = {}  # by the id of the sequence
        self._at: dict[int, TrackedRequest] = {}  # by the row of the last call

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[TrackedRequest]:
        return iter([*self._known.values()])

    def claim(self, rows: Sequence[BatchRow], gap: int = 0) -> list[TrackedRequest | None]:
        """Find the request of each row: the one that was there before, else the longest that fits.
        None: it is new.

        Args:
            gap: most tokens that a request may have got in steps which nobody was told of.
        """
        found = [self._at.get(row.place) for row in rows]
        found = [
            one if one is not None and one.goes_on_in(row, gap) else None
            for one, row in zip(found, rows, strict=True)
        ]
        taken = {one.request.id for one in found if one is not None}
        waiting = sorted(
            (one for one in self._known.values() if one.request.id not in taken),
            key=len,
            reverse=True,
        )
        for index, row in enumerate(rows):
            if found[index] is None and waiting:
                found[index] = next((one for one in waiting if one.goes_on_in(row, gap)), None)
                waiting = [one for one in waiting if one is not found[index]]
        return found

    def resolve_batch_invariance(self, present: dict[int, TrackedRequest]) -> list[TrackedRequest]:
        """Note who is in which row now; returns those that have been away for so long that they
        count as finished.
        """
        self._at = present
        self._known.update((one.request.id, one) for one in present.values())
        for one in self._known.values():
            one.unseen += 1
        for place, one in present.items():
            one.place, one.unseen = place, 0
        return [one for one in self._known.values() if one.unseen >= PATIENCE]

    def drop(self, request: TrackedRequest) -> None:
        """Forget a request."""
        self._known.pop(request.request.id, None)
        if self._at.get(request.place) is request:
            del self._at[request.place]
