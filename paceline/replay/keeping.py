"""Wrap a drafter to record the target's top tokens at each position of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.recorded_answers.top_tokens import TopRows


class KeepsTop(DelegatingDrafter):
    """Wraps a drafter, and records the target's top-k tokens at every position.

    Args:
        inner: Drafter that proposes the draft trees.
        top: Number of tokens to record per position, at least 1.
    """

    def __init__(self, inner: Drafter, top: int) -> None:
        super().__init__(inner)
        self._top = top
        self.top_k = max(top, inner.top_k)
        # Request id -> recorded rows of each step. The requests are in the order of their start.
        self._recorded: dict[int, list[TopRows]] = {}

    def start(self, request: Request) -> None:
        """Prepare to record the request's top tokens, and pass the request to the drafter."""
        self._recorded[request.id] = []
        super().start(request)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Record the top tokens for each new token, and pass the outcomes to the drafter."""
        for outcome in outcomes:
            assert outcome.target_top is not None, "a drafter with top_k receives the top tokens"
            rows = [0, *(1 + node for node in outcome.accepted)][: len(outcome.new_token_ids)]
            with np.errstate(divide="ignore"):
                log_probs = np.log(outcome.target_top.probs[rows, : self._top])
            token_ids = outcome.target_top.token_ids[rows, : self._top]
            self._recorded[outcome.request.id].append(TopRows(token_ids, log_probs))
        if not self.inner.top_k:
            outcomes = [replace(outcome, target_top=None) for outcome in outcomes]
        super().observe(outcomes)

    def taken(self) -> list[TopRows]:
        """Return and discard the top tokens of each request started since the last call."""
        recorded, self._recorded = self._recorded, {}
        return [
            TopRows(*map(np.concatenate, zip(*rows, strict=True))) for rows in recorded.values()
        ]
