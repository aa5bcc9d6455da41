"""The SpecDec++ length rule (Huang, Guo, Wang 2024, section 3.2, algorithm 2)."""

from __future__ import annotations

import torch

from paceline.drafters.shared.chain import Chain, DrawnToken, NewTokens
from paceline.drafters.shared.length_rules import ThresholdRule
from paceline.drafters.specdec_pp.head import AcceptanceHead

_NOT_JUDGED = DrawnToken(0.0, 0.0, 1.0)  # marks a token that is not from the draft


class HeadRule(ThresholdRule):
    """Stop once the head expects a rejection in the draft (section 3.2, algorithm 2).

    A token is judged one forward pass after it was sampled, when its hidden state is known.
    `confidences` therefore refers to the token before each new token. The newest token has only its
    early confidence.

    Args:
        head: The acceptance head.
        threshold: The paper's h, maximum probability of a rejection.
        min_tokens: Minimum number of tokens.
        max_tokens: Maximum number of tokens.
        counts_newest: Whether the newest token counts, if the head was trained to judge it.
    Attributes:
        keep_second_choices: Whether second choices are recorded.
    """

    reads_hidden = True
    multiplies = True

    def __init__(
        self,
        head: AcceptanceHead,
        threshold: float,
        min_tokens: int,
        max_tokens: int,
        counts_newest: bool,
    ) -> None:
        super().__init__(max_tokens, 1.0 - threshold, min_tokens)
        self._head, self._counts_newest = head, counts_newest and bool(head.card.prior)
        self.keep_second_choices = False

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the confidence in the token before each new token.

        The token before a draft's first token is not drafted, so its confidence is 1.
        """
        assert new.hidden is not None
        drawn = self._drawn_tokens(new)
        before: list[DrawnToken] = []
        unjudged = []
        first = 0
        for chain, run in zip(new.chains, new.runs, strict=True):
            own = drawn[first : first + len(run)]
            if not chain.tokens:
                unjudged.append(first)
            before += [chain.drawn[-1] if chain.tokens else _NOT_JUDGED, *own[:-1]]
            chain.drawn += own
            first += len(run)
        figures = torch.tensor(
            [(token.log_prob, token.entropy) for token in before], device=new.hidden.device
        )
        confidences: list[float] = self._head.confidences(
            new.hidden, figures[:, 0], figures[:, 1]
        ).tolist()
        for index in unjudged:
            confidences[index] = 1.0
        return confidences

    def _drawn_tokens(self, new: NewTokens) -> list[DrawnToken]:
        log_probs, entropies = new.token_probs().log(), new.entropies()
        early = self._head.early_confidences(log_probs, entropies)
        columns = torch.stack([log_probs, entropies, early]).tolist()
        seconds = new.seconds() if self.keep_second_choices else ()
        return [DrawnToken(*token) for token in zip(*columns, *seconds, strict=True)]

    def early_confidence(self, chain: Chain, index: int) -> float:
        """Return the confidence in the newest token; 1 if the token does not count."""
        return chain.drawn[index].early_confidence if self._counts_newest else 1.0
