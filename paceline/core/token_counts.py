"""Count how often each token occurs in a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class TokenCounts:
    """Token counts of one request.

    Attributes:
        table: Counts in text and answer for several requests, float32 [requests, 2, vocab].
        row: Row of the request in the table.
        answer: Counted tokens of the answer. The prompt is always counted completely.
    """

    table: Tensor
    row: int
    answer: list[int] = field(default_factory=list)
