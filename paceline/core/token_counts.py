"""Count how often each token occurs in a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class TokenCounts:
    """Token counts of one request.

    Attributes:
        table: Counts for several requests, float32 [requests, 2, vocab]. For each request, the
            first row counts the tokens of prompt and answer, and the second row counts only the
            answer's tokens.
        row: Index of this request in the table.
        answer: Answer tokens counted so far. The prompt's tokens are always counted.
    """

    table: Tensor
    row: int
    answer: list[int] = field(default_factory=list)
