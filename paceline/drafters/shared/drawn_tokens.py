"""Hold the tokens that a draft forward pass draws, on the device and on the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.resolve import logit_entropies, topk_tokens
from paceline.core.tree import IntArray
from paceline.drafters.shared.chain import Chain
from paceline.util.device_copies import Arrays


@dataclass(slots=True)
class DrawnRows:
    """Hold the drawn tokens on the device, with the inputs of length rules.

    Each chain has a row after its newest token and one after each looked-up token. The host
    does not know yet which of the looked-up tokens the draft model agrees with.

    Attributes:
        chains: Open chains.
        scores: [chains, 1 + width, vocab or reduced]; the softmax is the distribution of each
            token.
        columns: [chains, 1 + width] column of each drawn token in `scores`.
        hidden: [chains, 1 + width, hidden] last hidden state of the token before each; None unless
            the rule reads it.
    """

    chains: list[Chain]
    scores: Tensor
    columns: Tensor
    hidden: Tensor | None = None
    _likely: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def two_likeliest(self) -> tuple[Tensor, Tensor]:
        """Return columns and probabilities of the two likeliest tokens, [..., 2] each."""
        if self._likely is None:
            self._likely = topk_tokens(self.scores, 2)
        return self._likely

    def highest(self) -> Tensor:
        """Return the highest probability of each distribution."""
        return self.two_likeliest()[1][..., 0]

    def token_probs(self) -> Tensor:
        """Return the probabilities of the drawn tokens."""
        if self.scores.device.type == "cpu":
            likely, probs = self.two_likeliest()
            if np.array_equal(likely.numpy()[..., 0], self.columns.numpy()):
                return probs[..., 0]
        # A token that is not a number is replaced by 0, as in `guess_tokens`.
        columns = self.columns.clamp(min=0)[..., None]
        return self.scores.softmax(-1).gather(-1, columns)[..., 0]

    def entropies(self) -> Tensor:
        """Return the entropies of the distributions, in nats."""
        return logit_entropies(self.scores)


@dataclass(slots=True)
class NewTokens:
    """Hold the n tokens that one draft forward pass adds to the open chains.

    Attributes:
        chains: Open chains without the new tokens.
        runs: New tokens per chain, one or more.
        figures: What the rule computed for the tokens (`LengthRule.figures`), [n, ...] each.
        vocabulary: Ascending ids of a reduced vocabulary; None for the whole vocabulary.
    """

    chains: list[Chain]
    runs: list[list[int]]
    figures: Arrays
    vocabulary: IntArray | None = None

    def seconds(
        self, likely: NDArray[Any], probs: NDArray[np.float32]
    ) -> tuple[list[int], list[float]]:
        """Return the likeliest other token per new token, and its probability.

        Args:
            likely: [n, 2] columns of the two likeliest tokens.
            probs: [n, 2] their probabilities.
        """
        token_ids = likely if self.vocabulary is None else self.vocabulary[likely]
        rows = np.arange(len(likely))
        # The second likeliest token is the other one, if the likeliest is the new token.
        which = (token_ids[:, 0] == [token for run in self.runs for token in run]).astype(np.int64)
        return token_ids[rows, which].tolist(), probs[rows, which].tolist()
