"""Hold the tokens of a chain while a draft model drafts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.resolve import logit_entropies, topk_tokens
from paceline.core.request import Request
from paceline.core.tree import IntArray


class DrawnToken(NamedTuple):
    """Hold the figures of a token at the time it was drawn.

    A rule may judge the token one forward pass later.

    Attributes:
        log_prob: Log-probability in the distribution it was drawn from.
        entropy: Entropy of that distribution, in nats.
        early_confidence: First estimate of the acceptance probability, from these two figures.
        second: Likeliest other token.
        second_prob: Probability of `second`.
    """

    log_prob: float
    entropy: float
    early_confidence: float
    second: int = -1
    second_prob: float = 0.0


@dataclass(slots=True)
class Chain:
    """Hold the tokens that one request has drafted in this step.

    Attributes:
        request: The draft model's copy of the request; it ends with `tokens`.
        limit: Maximum number of tokens.
        open: Whether drafting continues.
        draws: Whether the tokens are sampled and verified by their distributions.
        end_ids: Token ids that end the draft.
        tokens: Draft tokens.
        probs: Distribution [vocab] per token, for sampled drafts.
        confidences: Values that a `ThresholdRule` gave to the tokens.
        draft_confidence: Value of a `ThresholdRule` for the whole draft.
        drawn: Figures per token, if the rule keeps them.
    """

    request: Request
    limit: int
    open: bool
    draws: bool
    end_ids: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    draft_confidence: float = 1.0
    drawn: list[DrawnToken] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Number of tokens that the limit still allows."""
        return self.limit - len(self.tokens)

    def extend(self, run: list[int], stop_after: int | None, probs: Tensor | None) -> list[int]:
        """Add new tokens; close the chain at the rule's stop, an end id, or the limit.

        Args:
            run: New tokens, one or more.
            stop_after: Number of new tokens after which the rule stops; None if it continues.
            probs: [len(run), vocab] distributions of the tokens, needed for sampled drafts only.
        Returns:
            The part of `run` that stays in the draft model's copy, at least one token.
        """
        length = len(run) if stop_after is None else stop_after
        self.open = stop_after is None
        for index, token in enumerate(run[:length] if self.end_ids else ()):
            if token in self.end_ids:
                self.open, length = False, index + 1
                break
        self.tokens.extend(run[:length])
        if self.draws and probs is not None:
            self.probs.extend(probs[:length])
        self.open = self.open and self.room > 0
        return run[: max(1, length)]


@dataclass(slots=True)
class NewTokens:
    """Hold the n tokens that one draft forward pass adds to the open chains.

    Attributes:
        chains: Open chains without the new tokens.
        runs: New tokens per chain, one or more.
        scores: [n, vocab or reduced]; the softmax is the distribution of each token.
        hidden: [n, hidden] last hidden state of the token before each; None unless the rule reads
            it.
        vocabulary: Ascending ids of a reduced vocabulary; None for the whole vocabulary.
    """

    chains: list[Chain]
    runs: list[list[int]]
    scores: Tensor
    hidden: Tensor | None
    vocabulary: IntArray | None = None
    _likely: tuple[IntArray, NDArray[np.float32]] | None = field(
        default=None, init=False, repr=False
    )

    @property
    def probs(self) -> Tensor:
        """Distributions of the tokens, [n, vocab or reduced]."""
        return self.scores.softmax(-1)

    def highest(self) -> list[float]:
        """Return the highest probability of each distribution."""
        highest: list[float] = self._two_likeliest()[1][:, 0].tolist()
        return highest

    def token_probs(self) -> Tensor:
        """Return the probabilities [n] of the new tokens."""
        likely, probs = self._two_likeliest()
        columns = self._columns()
        if likely[:, 0].tolist() == columns:
            return torch.from_numpy(probs[:, 0]).to(self.scores.device)
        return self.probs.gather(1, torch.tensor(columns, device=self.scores.device)[:, None])[:, 0]

    def seconds(self) -> tuple[list[int], list[float]]:
        """Return the likeliest other token per new token, and its probability."""
        likely, probs = self._two_likeliest()
        rows = np.arange(len(likely))
        # Column 1 is the second likeliest token, if column 0 is the new token.
        which = (likely[:, 0] == self._columns()).astype(np.int64)
        columns = likely[rows, which]
        return (columns if self.vocabulary is None else self.vocabulary[columns]).tolist(), probs[
            rows, which
        ].tolist()

    def entropies(self) -> Tensor:
        """Return the entropies [n] of the distributions, in nats."""
        return logit_entropies(self.scores)

    def _two_likeliest(self) -> tuple[IntArray, NDArray[np.float32]]:
        """Return columns and probabilities of the two likeliest tokens, [n, 2] each."""
        if self._likely is None:
            self._likely = topk_tokens(self.scores, 2)
        return self._likely

    def _columns(self) -> list[int]:
        """Return the columns of the new tokens in `scores`."""
        tokens = [token for run in self.runs for token in run]
        if self.vocabulary is None:
            return tokens
        columns: list[int] = np.searchsorted(self.vocabulary, tokens).tolist()
        return columns
