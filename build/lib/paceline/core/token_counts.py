"""Hold how often each token occurs in a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class TokenCounts:
    """Hold the counts of one request.

    Attributes:
        table: Counts of several requests, float32 [requests, 2, vocab].
        row: Row of the request in the table.
        answer: Tokens of the answer that are counted; of the prompt, all are.
    """

    table: Tensor
    row: int
    answer: list[int] = field(default_factory=list)
