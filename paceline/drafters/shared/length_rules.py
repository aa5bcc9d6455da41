"""Length rules: decide how many tokens to draft before verification.

Longer drafts waste more tokens after a rejection, and shorter drafts require more target forward
passes (Huang et al. 2024, "SpecDec++", equation 2.3). A rule runs after every forward pass of the
draft model, once for all chains in the batch. It may use all information about the tokens drafted
so far. However, the newest token is always verified: if the decision to verify a sampled token
depended on the token itself, the output distribution would change.
"""

from __future__ import annotations

import math

from torch import Tensor

from paceline.drafters.shared.chain import Chain
from paceline.drafters.shared.drawn_tokens import DrawnRows, NewTokens
from paceline.drafters.shared.settings import LengthRuleSettings

_SETTINGS = LengthRuleSettings()


class LengthRule:
    """Drafts a constant number of tokens; base class of the other length rules.

    Attributes:
        length: Maximum number of tokens in the first draft of a request.
        checks_tokens: Whether the rule may end a draft early, as decided by `stop_after`.
        reads_hidden: Whether the rule needs the draft model's hidden states.
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
            length: Maximum number of tokens in the last draft.
            drafted: Number of tokens in the last draft.
            accepted: Number of draft tokens that the target accepted.
        """
        return length

    def figures(self, rows: DrawnRows) -> list[Tensor]:
        """Compute statistics of the drawn tokens for `stop_after`.

        Returns:
            Tensors [chains, 1 + width, ...] on the device, which are copied to `NewTokens.figures`
            in one transfer.
        """
        return []

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """Decide which chains end, and how many of their new tokens they keep.

        Returns:
            For each chain, the number of new tokens to keep, or None if drafting continues. A
            sampled draft keeps at least one token.
        """
        return [None] * len(new.chains)


class HeuristicRule(LengthRule):
    """Drafts two more tokens after a fully accepted draft, and otherwise one fewer.

    This is transformers' `num_assistant_tokens_schedule="heuristic"`, a baseline in the code of
    the SpecDec++ authors.
    """

    stops_at_end = True

    def next_length(self, length: int, drafted: int, accepted: int) -> int:
        """Return `length` + 2 after full acceptance, otherwise `length` - 1; at least 1."""
        return length + 2 if accepted == drafted else max(1, length - 1)


class ThresholdRule(LengthRule):
    """Ends a draft once its confidence falls below a threshold.

    Subclasses define the confidence in `figures`.

    Args:
        length: Maximum number of tokens in a draft.
        stop_below: Threshold for the confidence.
        min_tokens: Minimum number of tokens in a draft.
    Attributes:
        multiplies: Whether the draft's confidence is the product of its tokens' confidences.
            Otherwise, it is the confidence of the newest token.
    """

    checks_tokens = True
    stops_at_end = True
    multiplies = False

    def __init__(self, length: int, stop_below: float, min_tokens: int = 1) -> None:
        super().__init__(length)
        self.stop_below = stop_below
        self._min_tokens = min_tokens

    def confidences(self, new: NewTokens) -> list[float]:
        """Return each new token's confidence.

        By default, the confidence is the first statistic that `figures` returns.
        """
        confidences: list[float] = new.figures[0].tolist()
        return confidences

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """End each chain once its confidence falls below the threshold.

        The token that lowered the confidence is kept as the last token of the chain.

        Args:
            new: New tokens of the unfinished chains.
        Returns:
            For each chain, the number of new tokens to keep, or None if drafting continues.
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

    def early_confidence(self, chain: Chain, index: int) -> float:
        """Return a first estimate for a token whose confidence is not yet known.

        By default, the estimate is 1, because most rules know a new token's confidence
        immediately.

        Args:
            chain: Chain that contains the token.
            index: Index of the token in the draft.
        """
        return 1.0


class ProductRule(ThresholdRule):
    """Ends a draft when the product of the highest probabilities is below a threshold.

    The product is the draft model's probability that every token of a greedy draft is correct.
    """

    stops_at_end = False
    multiplies = True

    def figures(self, rows: DrawnRows) -> list[Tensor]:
        """Return the highest probability at each position, [chains, 1 + width]."""
        return [rows.highest()]


class ConfidenceRule(ThresholdRule):
    """Ends a draft when the probability of its newest token is below a threshold.

    This is transformers' `assistant_confidence_threshold` with a fixed threshold.
    """

    def figures(self, rows: DrawnRows) -> list[Tensor]:
        """Return the probability of each drawn token, [chains, 1 + width]."""
        return [rows.token_probs()]


class EntropyRule(ThresholdRule):
    """Ends a draft when a lower bound on the acceptance rate is below a threshold.

    The bound is 1 - sqrt(0.2 entropy). The rule follows Agrawal et al. 2024, "AdaEDL", with a
    fixed threshold instead of an adaptive one.
    """

    def figures(self, rows: DrawnRows) -> list[Tensor]:
        """Return the entropy of each token's distribution, [chains, 1 + width]."""
        return [rows.entropies()]

    def confidences(self, new: NewTokens) -> list[float]:
        """Return a lower bound on each new token's acceptance rate.

        If the entropy is high, the bound is negative.
        """
        entropies: list[float] = new.figures[0].tolist()
        return [1.0 - math.sqrt(_SETTINGS.entropy_weight * entropy) for entropy in entropies]
