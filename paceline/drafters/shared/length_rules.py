"""Length rules: decide how many tokens a draft model drafts before verification.

A longer draft has more tokens discarded after a rejection; a shorter one costs more forward passes
of the target (Huang et al. 2024, "SpecDec++", equation 2.3). A rule runs after every forward pass
of the draft model, once for all chains of the batch. It may use anything known about the tokens
drafted so far. The newest token is verified in any case: whether a sampled token is verified must
not depend on the token itself, or the output distribution would change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.resolve import logit_entropies, topk_tokens
from paceline.core.request import Request
from paceline.core.tree import IntArray

MOST_TOKENS = 256  # in one draft, where a rule itself sets no limit
_ENTROPY_WEIGHT = 0.2  # per nat


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
        kept = len(run) if stop_after is None else stop_after
        self.open = stop_after is None
        for index, token in enumerate(run[:kept] if self.end_ids else ()):
            if token in self.end_ids:
                self.open, kept = False, index + 1
                break
        self.tokens.extend(run[:kept])
        if self.draws and probs is not None:
            self.probs.extend(probs[:kept])
        self.open = self.open and self.room > 0
        return run[: max(1, kept)]


@dataclass(slots=True)
class NewTokens:
    """Hold the n tokens that one draft forward pass adds to the open chains.

    Attributes:
        chains: Open chains without the new tokens.
        runs: New tokens per chain, one or more.
        scores: [n, vocab or kept]; the softmax is the distribution of each token.
        hidden: [n, hidden] last hidden state of the token before each; None unless the rule reads
            it.
        kept: Ascending ids of a reduced vocabulary; None for the whole vocabulary.
    """

    chains: list[Chain]
    runs: list[list[int]]
    scores: Tensor
    hidden: Tensor | None
    kept: IntArray | None = None
    _likely: tuple[IntArray, NDArray[np.float32]] | None = field(
        default=None, init=False, repr=False
    )

    @property
    def probs(self) -> Tensor:
        """Distributions of the tokens, [n, vocab or kept]."""
        return self.scores.softmax(-1)

    def highest(self) -> list[float]:
        """Return the highest probability of each distribution."""
        found: list[float] = self._two_likeliest()[1][:, 0].tolist()
        return found

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
        # 1 = the second, the first being the new token
        which = (likely[:, 0] == self._columns()).astype(np.int64)
        columns = likely[rows, which]
        return (columns if self.kept is None else self.kept[columns]).tolist(), probs[
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
        return tokens if self.kept is None else np.searchsorted(self.kept, tokens).tolist()


class LengthRule:
    """Draft a constant number of tokens; base class of the other rules.

    Attributes:
        length: Maximum number of tokens in the first draft of a request.
        checks_tokens: Whether the rule needs `stop_after`.
        reads_hidden: Whether the rule needs hidden states.
        stops_at_end: Whether drafts end with an end-of-sequence token.
    """

    checks_tokens = False
    reads_hidden = False
    stops_at_end = False

    def __init__(self, length: int) -> None:
        self.length = length

    def next_length(self, length: int, drafted: int, accepted: int) -> int:
        """Return the maximum number of tokens in a request's next draft.

        Args:
            length: Maximum number of tokens in its last draft.
            drafted: Number of tokens in that draft.
            accepted: Number of these that the target accepted.
        """
        return length

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """Return per chain the number of new tokens after which drafting stops.

        None continues; sampled drafts keep at least 1 token.
        """
        return [None] * len(new.chains)


class HeuristicRule(LengthRule):
    """Draft two tokens more after a fully accepted draft, else one less.

    This is transformers' `num_assistant_tokens_schedule="heuristic"`, a baseline of SpecDec++'s
    public code.
    """

    stops_at_end = True

    def next_length(self, length: int, drafted: int, accepted: int) -> int:
        """Return the length plus 2 or minus 1, at least 1."""
        return length + 2 if accepted == drafted else max(1, length - 1)


class ThresholdRule(LengthRule):
    """Stop once the confidence in the draft falls below a threshold.

    Subclasses define the confidence.

    Args:
        length: Maximum number of tokens.
        stop_below: The threshold.
        min_tokens: Minimum number of tokens.
    Attributes:
        multiplies: Whether the draft's confidence is the product over its tokens, else the newest
            value.
    """

    checks_tokens = True
    stops_at_end = True
    multiplies = False

    def __init__(self, length: int, stop_below: float, min_tokens: int = 1) -> None:
        super().__init__(length)
        self.stop_below = stop_below
        self._min_tokens = min_tokens

    def confidences(self, new: NewTokens) -> list[float]:
        """Return one value per new token."""
        raise NotImplementedError

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """Stop at the first token that brings the confidence below the threshold.

        That token is the last one of the draft.
        """
        confidences = self.confidences(new)
        first, stops = 0, []
        for chain, run in zip(new.chains, new.runs, strict=True):
            stops.append(self._stop_in_chain(chain, confidences[first : first + len(run)]))
            first += len(run)
        return stops

    def _stop_in_chain(self, chain: Chain, confidences: list[float]) -> int | None:
        for count, confidence in enumerate(confidences, 1):
            chain.confidences.append(confidence)
            chain.draft_confidence = (
                chain.draft_confidence * confidence if self.multiplies else confidence
            )
            drafted = len(chain.tokens) + count
            if (
                chain.draft_confidence * self.early_confidence(chain, drafted - 1) < self.stop_below
                and drafted >= self._min_tokens
            ):
                return count
        return None

    def early_confidence(self, chain: Chain, place: int) -> float:
        """Return the confidence in the newest token, for rules that judge one pass later."""
        return 1.0


class ProductRule(ThresholdRule):
    """Stop by the product of the draft model's highest probabilities.

    It is the draft model's probability that every token of a greedy draft is right.
    """

    stops_at_end = False
    multiplies = True

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the highest probability of each distribution."""
        return new.highest()


class ConfidenceRule(ThresholdRule):
    """Stop by the probability of the newest token.

    This is transformers' `assistant_confidence_threshold` with a fixed threshold.
    """

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the probability of each token."""
        own: list[float] = new.token_probs().tolist()
        return own


class EntropyRule(ThresholdRule):
    """Stop by 1 - sqrt(0.2 entropy), a lower bound of the acceptance probability.

    The rule follows Agrawal et al. 2024, "AdaEDL", with a fixed threshold instead of an adaptive
    one.
    """

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the lower bounds, which are negative for large entropies."""
        return [1.0 - math.sqrt(_ENTROPY_WEIGHT * entropy) for entropy in new.entropies().tolist()]
