"""Define the SpecDec++ length rule (Huang, Guo, Wang 2024, 3.2, algorithm 2)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paceline.drafters.shared.chain import Chain, DrawnToken
from paceline.drafters.shared.drawn_tokens import DrawnRows, NewTokens
from paceline.drafters.shared.length_rules import ThresholdRule
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.util.device_copies import upload

_NOT_JUDGED = DrawnToken(0.0, 0.0, 1.0)  # placeholder for the text token before a draft


class HeadRule(ThresholdRule):
    """Stops drafting once the head expects a rejection (SpecDec++, 3.2, algorithm 2).

    The draft model samples a token in one forward pass, and computes the token's hidden state in
    the next. The head therefore evaluates each token one pass late: when a pass has sampled the
    token b after the token a, `confidences` returns the confidence of a. Until the next pass, the
    head only estimates an early confidence of b, from b's distribution
    (`AcceptanceHead.early_confidences`).

    Args:
        head: Acceptance head.
        threshold: Maximum probability of a rejection (h in the paper).
        min_tokens: Minimum number of tokens in a draft.
        max_tokens: Maximum number of tokens in a draft.
        counts_newest: Whether the rule also uses the newest token's early confidence. The rule
            ignores this argument if the head was not trained to estimate early confidences.
    Attributes:
        keep_second_choices: Whether to record the draft model's most likely alternative to each
            token.
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

    def figures(self, rows: DrawnRows) -> list[Tensor]:
        """Compute statistics of the drawn tokens, and confidences of the preceding tokens.

        The statistics are log-probability, entropy and early confidence (an estimate from the
        token's distribution). With `keep_second_choices`, the two most likely tokens and their
        probabilities are added.
        """
        assert rows.hidden is not None
        log_probs, entropies = rows.token_probs().log(), rows.entropies()
        known = [chain.drawn[-1] if chain.tokens else _NOT_JUDGED for chain in rows.chains]
        newest = np.array([(token.log_prob, token.entropy) for token in known], dtype=np.float32)
        (first,) = upload(rows.scores.device, newest)
        before = first.unbind(1)
        if log_probs.shape[1] > 1:
            before = tuple(
                torch.cat((own[:, None], figures[:, :-1]), dim=1).flatten()
                for own, figures in zip(before, (log_probs, entropies), strict=True)
            )
        confidences = self._head.confidences(rows.hidden.flatten(0, 1), *before)
        early = self._head.early_confidences(log_probs, entropies)
        seconds = rows.two_likeliest() if self.keep_second_choices else ()
        return [log_probs, entropies, early, confidences.view_as(early), *seconds]

    def confidences(self, new: NewTokens) -> list[float]:
        """Return the confidence of the token before each new token.

        The token before a draft's first token is part of the text, so its confidence is 1.
        """
        *figures, before = (figure.tolist() for figure in new.figures[:4])
        seconds = new.seconds(*new.figures[4:]) if self.keep_second_choices else ()
        drawn = [DrawnToken(*token) for token in zip(*figures, *seconds, strict=True)]
        confidences: list[float] = before
        first = 0
        for chain, run in zip(new.chains, new.runs, strict=True):
            if not chain.tokens:
                confidences[first] = 1.0
            chain.drawn += drawn[first : first + len(run)]
            first += len(run)
        return confidences

    def early_confidence(self, chain: Chain, index: int) -> float:
        """Return the newest token's early confidence, or 1 if the rule ignores that token."""
        return chain.drawn[index].early_confidence if self._counts_newest else 1.0
