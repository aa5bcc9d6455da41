"""Represent a forward pass's logits for the newest tokens and the draft nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.drafter import TopTokens
from paceline.core.tree import IntArray
from paceline.util.device_copies import Arrays, upload


class TopLogits(NamedTuple):
    """The most likely tokens of each row, on the device of the logits.

    Attributes:
        columns: Columns of the logits, [rows, k], most likely first.
        probs: Probabilities of these tokens, float32 [rows, k]; zeros if the row has NaN or
            infinite logits.
        vocabulary_ids: Token id of each column; None if column i is token i.
    """

    columns: Tensor
    probs: Tensor
    vocabulary_ids: IntArray | None

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the device tensors to copy to the CPU as the input of `tokens`."""
        return self.columns, self.probs

    def rows(self, select: Callable[[Tensor], Tensor]) -> TopLogits:
        """Return the tokens of selected rows.

        Args:
            select: Function that receives a tensor [rows, k] and returns its selected rows.
        """
        return TopLogits(select(self.columns), select(self.probs), self.vocabulary_ids)

    def tokens(self, arrays: Arrays) -> TopTokens:
        """Return the most likely tokens on the CPU.

        Args:
            arrays: CPU copies of `tensors`.
        """
        columns, probs = arrays
        return TopTokens(
            columns if self.vocabulary_ids is None else self.vocabulary_ids[columns], probs
        )


@dataclass(slots=True)
class NodeLogits:
    """The logits of one forward pass for several requests, without padding.

    Attributes:
        flat: Logits [rows, vocab].
        starts: Index of each request's first row, which contains the logits for the token after
            the newest token.
        counts: Number of rows per request: one for the newest token, and one per draft node.
        states: Hidden states of each row, [rows, 1 + layers, hidden]: the input of the LM head,
            then the inputs of the captured layers. None if no states were captured.
        pending: For each request, the hidden states of the n pending tokens before the newest
            token, [n, 1 + layers, hidden]. None if no states were captured.
        top: Most likely tokens of each row; None if not computed.
    """

    flat: Tensor
    starts: list[int]
    counts: list[int]
    states: Tensor | None = None
    pending: list[Tensor] | None = None
    top: TopLogits | None = None

    @staticmethod
    def from_rows(flat: Tensor, counts: list[int], scored: list[int] | None = None) -> NodeLogits:
        """Return the logits for requests whose rows follow one another without padding.

        Args:
            flat: Logits [rows, vocab].
            counts: Number of rows per request, not counting the rows of scored prompt tokens.
            scored: For each request, the number of scored prompt tokens, whose log-probabilities
                were requested. Their rows precede the request's other rows. None means no scored
                tokens.
        """
        before = scored or [0] * len(counts)
        ends = accumulate(skipped + count for skipped, count in zip(before, counts, strict=True))
        return NodeLogits(
            flat, [end - count for end, count in zip(ends, counts, strict=True)], counts
        )

    @staticmethod
    def from_padded(flat: Tensor, counts: list[int], scored: int = 0) -> NodeLogits:
        """Return the logits for requests padded to the same number of rows.

        Args:
            flat: Logits [batch * (scored + 1 + width), vocab]; width is the number of nodes in the
                largest tree.
            counts: Number of rows per request, not counting padding and scored prompt tokens.
            scored: Number of scored prompt tokens per request, whose log-probabilities were
                requested. Their rows precede the request's other rows.
        """
        width = flat.shape[0] // len(counts)
        return NodeLogits(flat, [row * width + scored for row in range(len(counts))], counts)

    def without_prompts(self) -> NodeLogits:
        """Return the logits without the rows that score prompt tokens."""
        return replace(self._selected(range(len(self))), pending=self.pending)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.starts)

    def __getitem__(self, row: int) -> Tensor:
        """Return the logits for one request, [1 + nodes, vocab]."""
        return self.flat[self.starts[row] : self.starts[row] + self.counts[row]]

    def select(self, rows: Sequence[int]) -> NodeLogits:
        """Return the logits for the requests with the indices `rows`, in that order."""
        return self if list(rows) == list(range(len(self))) else self._selected(rows)

    def _selected(self, rows: Sequence[int]) -> NodeLogits:
        counts = [self.counts[row] for row in rows]
        starts = [self.starts[row] for row in rows]

        def selected(tensor: Tensor) -> Tensor:
            spans = zip(starts, counts, strict=True)
            return torch.cat([tensor[:0], *(tensor[start : start + n] for start, n in spans)])

        return replace(
            NodeLogits.from_rows(selected(self.flat), counts),
            states=None if self.states is None else selected(self.states),
            top=self.top and self.top.rows(selected),
        )

    def padded(self) -> Tensor:
        """Return the logits as [batch, 1 + width, vocab], padded at the end.

        The width is the number of nodes in the largest tree.
        """
        width = max(self.counts, default=1)
        even = len(self.starts) * width == len(self.flat)
        if even and self.starts == list(range(0, len(self.flat), width)):
            return self.flat.view(len(self.starts), width, self.flat.shape[-1])
        last = len(self.flat) - 1
        rows = np.minimum(np.array(self.starts, dtype=np.int64)[:, None] + np.arange(width), last)
        return self.flat[upload(self.flat.device, rows)[0]]
