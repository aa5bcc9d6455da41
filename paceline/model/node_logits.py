"""What a forward said after the newest token of every sequence and after each of its nodes: rows
of logits, none of padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from paceline.core.drafter import TopTokens
from paceline.core.tree import IntArray
from paceline.cpu.topk import likeliest


@dataclass(frozen=True, slots=True)
class NodeLogits:
    """Logits of several sequences.

    Attributes:
        flat: [rows, vocab]. starts, counts: of each sequence, its first row, that after the newest
            token, and how many it has.
        states: what each row was made of, [rows, 1 + layers, hidden]: what the LM head was fed,
            then what went into the layers asked for; None where nobody asked.
        pending: of each sequence, the same after all pending tokens but the newest, [n, 1 + layers,
            hidden]; None likewise.
        top: the likeliest tokens of each row; None likewise.
    """

    flat: Tensor
    starts: list[int]
    counts: list[int]
    states: Tensor | None = None
    pending: list[Tensor] | None = None
    top: TopTokens | None = None

    @staticmethod
    def side_by_side(
        flat: Tensor, counts: list[int], scored: list[int] | None = None
    ) -> NodeLogits:
        """Return the logits of sequences whose rows follow one another.

        Args:
            flat: [rows, vocab].
            counts: as above.
            scored: of each sequence, the rows of prompt tokens before its first one; None = none.
        """
        before = scored or [0] * len(counts)
        ends = accumulate(skipped + count for skipped, count in zip(before, counts, strict=True))
        return NodeLogits(
            flat, [end - count for end, count in zip(ends, counts, strict=True)], counts
        )

    @staticmethod
    def of(padded: Tensor, counts: list[int], scored: int = 0) -> NodeLogits:
        """Return the logits of sequences that have equally many rows, padding included.

        Args:
            padded: [batch, scored + 1 + width, vocab].
            counts: as above.
            scored: rows of prompt tokens before the first one of each sequence.
        """
        width = padded.shape[1]
        return NodeLogits(
            padded.flatten(0, 1), [row * width + scored for row in range(len(padded))], counts
        )

    def without_prompts(self) -> NodeLogits:
        """Return the same without the rows of prompt tokens."""
        return replace(self._taken(range(len(self))), pending=self.pending)

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self.starts)

    def __getitem__(self, row: int) -> Tensor:
        """Those of one sequence, [1 + nodes, vocab]."""
        return self.flat[self.starts[row] : self.starts[row] + self.counts[row]]

    def those(self, rows: Sequence[int]) -> NodeLogits:
        """Those of some of the sequences, in their order, and no rows of others."""
        return self if list(rows) == list(range(len(self))) else self._taken(rows)

    def _taken(self, rows: Sequence[int]) -> NodeLogits:
        counts = [self.counts[row] for row in rows]
        starts = [self.starts[row] for row in rows]
        flat, states = (
            None
            if whole is None
            else torch.cat(
                [whole[:0], *(whole[a : a + n] for a, n in zip(starts, counts, strict=True))]
            )
            for whole in (self.flat, self.states)
        )
        assert flat is not None, "rows have logits"
        if self.top is None:
            return replace(NodeLogits.side_by_side(flat, counts), states=states)
        own = [
            place
            for start, count in zip(starts, counts, strict=True)
            for place in range(start, start + count)
        ]
        return replace(NodeLogits.side_by_side(flat, counts), states=states, top=self.top.of(own))

    def with_top(self, count: int, kept_ids: IntArray | None = None) -> NodeLogits:
        """These, with the `count` likeliest tokens of each row.

        Args:
            kept_ids: the tokens that rows are about; None = all.
        """
        places, probs = likeliest(self.flat, count)
        return replace(self, top=TopTokens(places if kept_ids is None else kept_ids[places], probs))

    def padded(self) -> Tensor:
        """All of them as [batch, 1 + width, vocab]; what is beyond a sequence's own rows means
        nothing.
        """
        width = max(self.counts, default=1)
        even = len(self.starts) * width == len(self.flat)
        if even and self.starts == list(range(0, len(self.flat), width)):
            return self.flat.view(len(self.starts), width, self.flat.shape[-1])
        last = len(self.flat) - 1
        rows = [[min(start + place, last) for place in range(width)] for start in self.starts]
        return self.flat[torch.tensor(rows, device=self.flat.device)]
