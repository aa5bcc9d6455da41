"""Length rules: how many tokens a draft model drafts before the target verifies them.

The trade (Huang et al. 2024, "SpecDec++", equation 2.3): a longer draft has more tokens discarded after a rejection, a shorter
one costs more forwards of the target. A rule is asked after every forward of the draft model, once for all chains of the
batch. It may go by anything known of the tokens drafted so far, the newest one included, but that one is verified in any case:
whether a draw is shown to the target must not depend on what was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.errors import DrafterError
from paceline.sequence import Sequence

MOST_TOKENS = 256  # of one draft, where a rule itself sets no limit
_ENTROPY_WEIGHT = 0.2  # per nat


@dataclass(slots=True)
class Chain:
    """What one sequence has drafted in this step.

    Attributes:
        seq: the draft model's copy of the sequence, which ends in `tokens`.
        limit: most tokens; open: whether it goes on.
        draws: its tokens are draws, verified by their distributions; else guesses.
        ends: tokens that end it.
        tokens, probs: what was drafted, and for draws the distribution [vocab] of each.
        chance: what the rule thinks of the draft so far; estimates: what it was told of each token.
        drawn_from: log-probability and entropy (nats) of each token when it was drawn, for a rule that judges it later;
            outlooks: what such a rule thinks of each token when it is drawn.
    """

    seq: Sequence
    limit: int
    open: bool
    draws: bool
    ends: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)
    chance: float = 1.0
    estimates: list[float] = field(default_factory=list)
    drawn_from: list[tuple[float, float]] = field(default_factory=list)
    outlooks: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one forward of the draft model adds to the open chains: n tokens in all, chain after chain.

    Attributes:
        runs: per chain its new tokens, one or more.
        probs: [n, vocab], the distribution each of them was drawn from.
        hidden: [n, hidden], the last hidden state of the token before each of them; None unless the rule reads it.
    """

    chains: list[Chain]
    runs: list[list[int]]
    probs: Tensor
    hidden: Tensor | None

    def own_probs(self) -> Tensor:
        """Probabilities [n] of the new tokens."""
        tokens = torch.tensor([token for run in self.runs for token in run], device=self.probs.device)
        return self.probs.gather(1, tokens[:, None])[:, 0]

    def entropies(self) -> Tensor:
        """Entropies [n] of the distributions, in nats."""
        logs = self.probs.clamp_min(torch.finfo(self.probs.dtype).tiny).log_()  # `special.entr` takes several times as long
        return logs.mul_(self.probs).sum(-1).neg_()


class LengthRule:
    """A constant length: every draft has K tokens. The base of the other rules.

    Attributes:
        length: most tokens of a sequence's first draft.
        looks: the rule wants to see what was drawn; reads_hidden: it wants the hidden states, too.
        stops_at_end: drafts end with an end-of-sequence token.
    """

    looks = False
    reads_hidden = False
    stops_at_end = False

    def __init__(self, length: int) -> None:
        self.length = length

    def next_length(self, length: int, drafted: int, accepted: int) -> int:
        """Most tokens of a sequence's next draft, by the length it had and what became of the last one."""
        return length

    def stops(self, drawn: Drawn) -> list[int | None]:
        """Per chain None where it goes on, else how many tokens of its run belong to the finished draft; for draws at least 1."""
        return [None] * len(drawn.chains)


class HeuristicRule(LengthRule):
    """Two tokens more after a draft that was accepted whole, else one less: transformers' `num_assistant_tokens_schedule`
    "heuristic", a baseline of SpecDec++'s public code."""

    stops_at_end = True

    def next_length(self, length: int, drafted: int, accepted: int) -> int:
        """At least 1."""
        return length + 2 if accepted == drafted else max(1, length - 1)


class EstimateRule(LengthRule):
    """Stops once an estimate falls below a bound.

    Args:
        length: most tokens; least: fewest.
        stop_below: the bound.
    Attributes:
        product: what counts is the product of the estimates of all tokens; else the newest one's alone.
    """

    looks = True
    stops_at_end = True
    product = False

    def __init__(self, length: int, stop_below: float, least: int = 1) -> None:
        super().__init__(length)
        self.stop_below = stop_below
        self._least = least

    def estimates(self, drawn: Drawn) -> list[float]:
        """One per new token."""
        raise NotImplementedError

    def stops(self, drawn: Drawn) -> list[int | None]:
        """At the first token whose estimate is too low; that token is the last of the draft."""
        estimates = self.estimates(drawn)
        first, places = 0, []
        for chain, run in zip(drawn.chains, drawn.runs, strict=True):
            places.append(self._stop(chain, estimates[first : first + len(run)]))
            first += len(run)
        return places

    def _stop(self, chain: Chain, estimates: list[float]) -> int | None:
        for place, estimate in enumerate(estimates, 1):
            chain.estimates.append(estimate)
            chain.chance = chain.chance * estimate if self.product else estimate
            newest = len(chain.tokens) + place
            if chain.chance * self.outlook(chain, newest - 1) < self.stop_below and newest >= self._least:
                return place
        return None

    def outlook(self, chain: Chain, place: int) -> float:
        """The chance of the newest token, in `place` of the chain, where estimates are about the token before."""
        return 1.0


class ProductRule(EstimateRule):
    """The product of the draft model's highest probabilities: its own belief that every token of a greedy draft is right."""

    stops_at_end = False
    product = True

    def estimates(self, drawn: Drawn) -> list[float]:
        """Highest probabilities."""
        highest: list[float] = drawn.probs.amax(-1).tolist()
        return highest


class ConfidenceRule(EstimateRule):
    """The probability of the newest token: transformers' `assistant_confidence_threshold`, held fixed."""

    def estimates(self, drawn: Drawn) -> list[float]:
        """Probabilities of the tokens."""
        own: list[float] = drawn.own_probs().tolist()
        return own


class EntropyRule(EstimateRule):
    """1 - sqrt(0.2 entropy), a lower bound of the acceptance chance after Agrawal et al. 2024, "AdaEDL"; the bound it is held
    against is fixed here and adapted there."""

    def estimates(self, drawn: Drawn) -> list[float]:
        """Lower bounds, negative where the entropy is large."""
        return [1.0 - math.sqrt(_ENTROPY_WEIGHT * entropy) for entropy in drawn.entropies().tolist()]


class OracleRule(LengthRule):
    """Stops just before each disagreement, as only hindsight can (SpecDec++, section 2.1): for measurements.

    No token is discarded and the target runs once more than there are disagreements (lemma 2.1). Drops the token that
    differs, which is allowed for guesses only.

    Args:
        answers: per prompt what the target answers.
    """

    looks = True
    stops_at_end = True

    def __init__(self, answers: Mapping[tuple[int, ...], Seq[int]]) -> None:
        super().__init__(MOST_TOKENS)
        self._answers = answers

    def stops(self, drawn: Drawn) -> list[int | None]:
        """Before the first token that is not the answer's.

        Raises:
            DrafterError: a prompt without an answer, or a draft of draws.
        """
        return [self._first_difference(chain, run) for chain, run in zip(drawn.chains, drawn.runs, strict=True)]

    def _first_difference(self, chain: Chain, run: list[int]) -> int | None:
        if chain.draws:
            raise DrafterError(
                "the oracle length rule drops a token, and this draft consists of draws, which must be verified; allowed are"
                " guesses. Use temperature 0, or verification='follow' with answers of the same seed."
            )
        seq = chain.seq
        answer = self._answers.get(tuple(seq.token_ids[: seq.prompt_length]))
        if answer is None:
            raise DrafterError(
                f"the oracle length rule has no answer to a prompt of {seq.prompt_length} tokens, but to {len(self._answers)}"
                " others; record what the target answers to every prompt."
            )
        place = len(seq) - seq.prompt_length
        for count, token in enumerate(run):
            if list(answer[place + count : place + count + 1]) != [token]:
                return count
        return None
