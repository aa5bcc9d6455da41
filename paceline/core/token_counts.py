"""Count how often each token occurs in a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class TokenCounts:
    """Token counts of one request.

    Attributes:
        table: Counts for several requests, float32 [requests, 2, vocab]: in prompt and answer
            together, then in the answer alone.
        row: Row of the request in the table.
        answer: Tokens of the answer that have been counted. All prompt tokens have been counted.
    """

    table: Tensor
    row: int
    answer: list[int] = field(default_factory=list)
