"""Length rules: how many tokens a draft model drafts before the target verifies them.

The trade (Huang et al. 2024, "SpecDec++", equation 2.3): a longer draft has more tokens discarded
after a rejection, a shorter one costs more forwards of the target. A rule is asked after every
forward of the draft model, once for all chains of the batch. It may go by anything known of the
tokens drafted so far, the newest one included, but that one is verified in any case: whether a
drawn token is shown to the target must not depend on which token was drawn, or the output would
follow another law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.request import Request
from paceline.core.tree import IntArray
from paceline.cpu.topk import entropies, likeliest

MOST_TOKENS = 256  # in one draft, where a rule itself sets no limit
_ENTROPY_WEIGHT = 0.2  # per nat


class DrawnToken(NamedTuple):
    """Figures of one token at the time it was drawn, for a rule that judges it one forward later.

    Attributes:
        log_prob: its log-probability in the distribution it was drawn from.
        entropy: of that distribution, in nats.
        early_confidence: the rule's first estimate, from these two alone, that the token is
            accepted.
        second: the likeliest other token there; second_prob: its probability.
    """

    log_prob: float
    entropy: float
    early_confidence: float
    second: int = -1
    second_prob: float = 0.0


@dataclass(slots=True)
class Chain:
    """The tokens that one sequence has drafted in this step.

    Attributes:
        seq: the draft model's copy of the sequence; it ends in `tokens`.
        limit: most tokens.
        open: whether drafting continues.
        draws: whether the tokens are draws, to be verified by their distributions; else they are
            guesses.
        end_ids: token ids after which the draft ends.
        tokens: the draft.
        probs: for draws, per token the distribution [vocab] it was drawn from.
        confidences: the figures that a `ThresholdRule` has given to tokens so far.
        draft_confidence: what a `ThresholdRule` makes of them for the draft as a whole.
        drawn: per token its figures when it was drawn, where the rule keeps them.
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
        """How many more tokens the limit allows."""
        return self.limit - len(self.tokens)

    def extend(self, run: list[int], stop_after: int | None, probs: Tensor | None) -> list[int]:
        """Add new tokens, and close the chain where the rule stops, after an end id, or at the
        limit.

        Args:
            run: the new tokens, one or more.
            stop_after: after how many of them the rule stops; None = it does not.
            probs: [len(run), vocab], the distributions they were drawn from; only draws need them.
        Returns:
            the part of `run` that stays in the draft model's copy: what was added, and one token at
            least.
        """
        kept = len(run) if stop_after is None else stop_after
        self.open = stop_after is None
        for place, token in enumerate(run[:kept] if self.end_ids else ()):
            if token in self.end_ids:
                self.open, kept = False, place + 1
                break
        self.tokens.extend(run[:kept])
        if self.draws and probs is not None:
            self.probs.extend(probs[:kept])
        self.open = self.open and self.room > 0
        return run[: max(1, kept)]


@dataclass(slots=True)
class NewTokens:
    """The n tokens that one forward of the draft model adds to the open chains, chain after chain.

    Attributes:
        chains: the open chains, as they are without the new tokens.
        runs: per chain its new tokens, one or more.
        scores: [n, vocab, or kept], whose softmax is the distribution each token was drawn from.
        hidden: [n, hidden], the last hidden state of the token before each of them; None unless the
            rule reads it.
        kept: ids, ascending, of the tokens that `scores` is about; None = all.
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
        """The distributions, [n, vocab, or kept]."""
        return self.scores.softmax(-1)

    def highest(self) -> list[float]:
        """Return the highest probability of each distribution."""
        found: list[float] = self._two_likeliest()[1][:, 0].tolist()
        return found

    def token_probs(self) -> Tensor:
        """Return the probabilities [n] of the new tokens."""
        likely, probs = self._two_likeliest()
        places = self._places()
        if likely[:, 0].tolist() == places:
            return torch.from_numpy(probs[:, 0]).to(self.scores.device)
        return self.probs.gather(1, torch.tensor(places, device=self.scores.device)[:, None])[:, 0]

    def seconds(self) -> tuple[list[int], list[float]]:
        """Return the likeliest token at each place besides the new one, and its probability."""
        likely, probs = self._two_likeliest()
        rows = np.arange(len(likely))
        which = (likely[:, 0] == self._places()).astype(
            np.int64
        )  # 1 = the second, the first being the new token
        places = likely[rows, which]
        return (places if self.kept is None else self.kept[places]).tolist(), probs[
            rows, which
        ].tolist()

    def entropies(self) -> Tensor:
        """Return the entropies [n] of the distributions, in nats."""
        return entropies(self.scores)

    def _two_likeliest(self) -> tuple[IntArray, NDArray[np.float32]]:
        """The places of the two highest in each row, and their probabilities, [n, 2] each."""
        if self._likely is None:
            self._likely = likeliest(self.scores, 2)
        return self._likely

    def _places(self) -> list[int]:
        """Where the new tokens stand in `scores`."""
        tokens = [token for run in self.runs for token in run]
        return tokens if self.kept is None else np.searchsorted(self.kept, tokens).tolist()


class LengthRule:
    """A constant length: every draft has K tokens. The base of the other rules.

    Attributes:
        length: most tokens of a sequence's first draft.
        checks_tokens: whether `stop_after` must be asked.
        reads_hidden: whether it needs the hidden states, too.
        stops_at_end: whether drafts end with an end-of-sequence token.
    """

    checks_tokens = False
    reads_hidden = False
    stops_at_end = False

    def __init__(self, length: int) -> None:
        self.length = length

    def next_length(self, length: int, drafted: int, accepted: int) -> int:
        """Return the most tokens of a sequence's next draft.

        Args:
            length: the most tokens of its last draft.
            drafted: the tokens that draft had.
            accepted: how many of them the target accepted.
        """
        return length

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """Return per chain after how many of its new tokens drafting stops, None where it
        continues; for draws at least 1.
        """
        return [None] * len(new.chains)


class HeuristicRule(LengthRule):
    """Two tokens more after a draft that was accepted whole, else one less.

    This is transformers' `num_assistant_tokens_schedule` "heuristic", a baseline of SpecDec++'s
    public code.
    """

    stops_at_end = True

    def next_length(self, length: int, drafted: int, accepted: int) -> int:
        """Return the length plus 2 or minus 1, at least 1."""
        return length + 2 if accepted == drafted else max(1, length - 1)


class ThresholdRule(LengthRule):
    """Stop once the confidence in the draft falls below a bound. Subclasses say what the confidence
    is.

    Args:
        length: most tokens.
        stop_below: the bound.
        least: fewest tokens.
    Attributes:
        multiplies: whether the draft's confidence is the product over its tokens; else it is the
            newest figure alone.
    """

    checks_tokens = True
    stops_at_end = True
    multiplies = False

    def __init__(self, length: int, stop_below: float, least: int = 1) -> None:
        super().__init__(length)
        self.stop_below = stop_below
        self._least = least

    def confidences(self, new: NewTokens) -> list[float]:
        """Return one figure per new token."""
        raise NotImplementedError

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """Stop at the first token that brings the confidence below the bound; that token is the
        last of the draft.
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
                and drafted >= self._least
            ):
                return count
        return None

    def early_confidence(self, chain: Chain, place: int) -> float:
        """Return the confidence in the newest token, in `place` of the chain, where
        `confidences` is about the one before it.
        """
        return 1.0


class ProductRule(ThresholdRule):
    """The product of the draft model's highest probabilities: its own belief that every token of
    a greedy draft is right.
    """

    stops_at_end = False
    multiplies = True

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the highest probability of each distribution."""
        return new.highest()


class ConfidenceRule(ThresholdRule):
    """The probability of the newest token: transformers' `assistant_confidence_threshold`, held
    fixed.
    """

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the probability of each token."""
        own: list[float] = new.token_probs().tolist()
        return own


class EntropyRule(ThresholdRule):
    """1 - sqrt(0.2 entropy), a lower bound of the acceptance probability after Agrawal et al. 2024,
    "AdaEDL".

    The bound that it is held against is fixed here and adapted there.
    """

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the lower bounds, negative where the entropy is large."""
        return [1.0 - math.sqrt(_ENTROPY_WEIGHT * entropy) for entropy in new.entropies().tolist()]
