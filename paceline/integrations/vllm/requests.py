"""Match the rows of vLLM's batch to requests.

vLLM does not pass request ids to drafters, so a request is identified by its text so far. Each call
provides the rows of the batch, each with its text and the number of new tokens. In the following
examples, `|` precedes the new tokens:

    known text 1 2 3, row 1 2 3 | 4   -> The row continues the known request.
    known text 1 2 3, row 5 6 | 9     -> The row is a new request with the prompt 5 6.

A known text without a row belongs to a preempted or finished request.

A request keeps its text when vLLM moves the request to another row, or preempts and recomputes the
request. This module may swap two requests with the same text. The swap is harmless, because the
drafter's state depends only on the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.integrations.vllm.settings import ProposerSettings

MAX_MISSED_CALLS = ProposerSettings().max_missed_calls  # a request that returns later counts as new
_PARAMS = SamplingParams(ignore_eos=True)

IdArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of vLLM's batch that has new tokens.

    Attributes:
        index: Index of the row in the batch.
        text: Token ids of the prompt and answer, including the new tokens, as a view of vLLM's
            array.
        new: Number of new tokens.
    """

    index: int
    text: IdArray
    new: int

    @property
    def known(self) -> int:
        """Return the number of tokens in `text` that are not new."""
        return len(self.text) - self.new


class TrackedRequest:
    """A vLLM request, as tracked between calls of the drafter.

    Attributes:
        request: Request that is passed to the drafter.
        index: Index of the request's row in the batch.
        unseen: Number of drafter calls since the request was last in the batch.
        chain: Most recent draft, including tokens that were not passed to vLLM.
        sent: Number of leading tokens of `chain` that were passed to vLLM.
    """

    def __init__(self, row: BatchRow) -> None:
        self.request = Request(row.text[: row.known].tolist(), _PARAMS)
        self.index = row.index
        self.unseen = 0
        self.chain: DraftTree = EMPTY_TREE
        self.sent = 0
        self._ids: IdArray = row.text[: row.known].copy()
        self._buffer = self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def continues_in(self, row: BatchRow, gap: int) -> bool:
        """Return whether `row` continues the text of this request.

        Up to `gap` tokens may be missing between the known text and the row's new tokens.
        """
        missed = row.known - len(self)
        return 0 <= missed <= gap and np.array_equal(row.text[: len(self)], self._ids)

    def extend(self, row: BatchRow, end: int) -> list[int]:
        """Append the tokens of `row` up to `end`, and return the appended tokens."""
        begin = len(self)
        if end > len(self._buffer):
            self._buffer = np.empty(2 * end, dtype=np.int32)
            self._buffer[:begin] = self._ids
        self._buffer[begin:end] = row.text[begin:end]
        self._ids = self._buffer[:end]
        new_tokens: list[int] = row.text[begin:end].tolist()
        self.request.token_ids += new_tokens
        return new_tokens


class Requests:
    """Keeps the requests of earlier drafter calls, and finds each row's request."""

    def __init__(self) -> None:
        self._known: dict[int, TrackedRequest] = {}  # by request id
        self._at: dict[int, TrackedRequest] = {}  # by row in the last call

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[TrackedRequest]:
        return iter([*self._known.values()])

    def claim(self, rows: Sequence[BatchRow], gap: int = 0) -> list[TrackedRequest | None]:
        """Return the known request of each row; None for a row with a new request.

        If a row continues the texts of several known requests, the request that occupied this row
        in the previous call has priority. If that request is not among them, the request with the
        longest text is chosen.

        Args:
            rows: Rows of the batch.
            gap: Maximum number of new tokens that may be missing because vLLM skipped calls of the
                drafter.
        """
        matches = [self._at.get(row.index) for row in rows]
        matches = [
            request if request is not None and request.continues_in(row, gap) else None
            for request, row in zip(matches, rows, strict=True)
        ]
        taken_ids = {request.request.id for request in matches if request is not None}
        waiting = sorted(
            (request for request in self._known.values() if request.request.id not in taken_ids),
            key=len,
            reverse=True,
        )
        for index, row in enumerate(rows):
            if matches[index] is None and waiting:
                matches[index] = next(
                    (request for request in waiting if request.continues_in(row, gap)), None
                )
                waiting = [request for request in waiting if request is not matches[index]]
        return matches

    def record_rows(self, present: dict[int, TrackedRequest]) -> list[TrackedRequest]:
        """Record each request's row; return requests that have been missing for too long."""
        self._at = present
        self._known.update((request.request.id, request) for request in present.values())
        for request in self._known.values():
            request.unseen += 1
        for index, request in present.items():
            request.index, request.unseen = index, 0
        return [request for request in self._known.values() if request.unseen >= MAX_MISSED_CALLS]

    def drop(self, request: TrackedRequest) -> None:
        """Stop tracking a request."""
        self._known.pop(request.request.id, None)
        if self._at.get(request.index) is request:
            del self._at[request.index]
