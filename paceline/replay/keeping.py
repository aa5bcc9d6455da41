"""A drafter that keeps what the target said at every place of an answer, whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import replace

import numpy as np

from paceline.common.top_tokens import TopRows
from paceline.engine.drafter import DelegatingDrafter, Drafter, Outcome
from paceline.engine.sequence import Sequence


class KeepsTop(DelegatingDrafter):
    """Passes everything on, and collects the target's most likely tokens along what was said.

    Args:
        inner: drafts.
        top: tokens kept a place.
    """

    def __init__(self, inner: Drafter, top: int) -> None:
        super().__init__(inner)
        self._top = top
        self.top_k = max(top, inner.top_k)
        self._kept: dict[int, list[TopRows]] = {}  # sequence -> rows step by step, in the order in which they were started

    def start(self, seq: Sequence) -> None:
        """Keep for it."""
        self._kept[seq.id] = []
        super().start(seq)

    def observe(self, outcomes: ListLike[Outcome]) -> None:
        """Keep the rows behind which a token was said."""
        for outcome in outcomes:
            assert outcome.target_top is not None, "a drafter with top_k gets them"
            rows = [0, *(1 + node for node in outcome.accepted)][: len(outcome.new_token_ids)]
            with np.errstate(divide="ignore"):
                log_probs = np.log(outcome.target_top.probs[rows, : self._top])
            self._kept[outcome.seq.id].append(TopRows(outcome.target_top.token_ids[rows, : self._top], log_probs))
        super().observe([outcome if self.inner.top_k else replace(outcome, target_top=None) for outcome in outcomes])

    def taken(self) -> list[TopRows]:
        """Return the rows of every sequence that was started since the last call, in order, and forget them."""
        kept, self._kept = self._kept, {}
        return [TopRows(*map(np.concatenate, zip(*rows, strict=True))) for rows in kept.values()]
