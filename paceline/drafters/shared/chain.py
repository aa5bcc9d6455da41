"""Define the chain of tokens that a draft model drafts for one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from paceline.core.request import Request


class DrawnToken(NamedTuple):
    """Statistics of a draft token, recorded when the draft model drew it.

    A length rule may use the statistics one forward pass later.

    Attributes:
        log_prob: Log-probability of the token in the distribution from which it was drawn.
        entropy: Entropy of that distribution, in nats.
        early_confidence: First estimate of the acceptance probability, based on `log_prob` and
            `entropy`.
        second: Most likely token other than the drawn token.
        second_prob: Probability of `second`.
    """

    log_prob: float
    entropy: float
    early_confidence: float
    second: int = -1
    second_prob: float = 0.0


@dataclass(slots=True)
class Chain:
    """The tokens drafted so far for one request in this step.

    Attributes:
        request: The draft model's copy of the request, which ends with `tokens`.
        limit: Maximum number of tokens.
        open: Whether drafting continues.
        draws: Whether tokens are sampled, so that verification needs their distributions.
        end_ids: Token ids that end the draft.
        tokens: Draft tokens.
        probs: Distribution from which each token was sampled, [vocab]; empty if `draws` is
            false.
        confidences: Confidence of each token according to a `ThresholdRule`.
        draft_confidence: Confidence of the whole draft according to a `ThresholdRule`.
        drawn: Statistics of each token, if the length rule records them.
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
        """Number of tokens that can still be added before the limit."""
        return self.limit - len(self.tokens)

    def extend(self, run: list[int], stop_after: int | None, probs: Tensor | None) -> list[int]:
        """Add new tokens, and close the chain if drafting ends.

        Drafting ends at the limit, at a token in `end_ids`, or where the length rule ends it.

        Args:
            run: New tokens; at least one.
            stop_after: Number of new tokens that stay in the chain if the length rule ends it; None
                if the rule does not end it.
            probs: Distributions of the tokens, [len(run), vocab]; needed for sampled drafts only.
        Returns:
            Tokens of `run` to append to the draft model's copy of the request; at least one.
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
