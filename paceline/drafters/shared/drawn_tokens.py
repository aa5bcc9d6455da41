"""Define types for the tokens that a draft forward pass has drawn.

`DrawnRows` stores tensors on the device. `NewTokens` stores tokens on the host.
"""

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
    """Tokens that the draft model has drawn, as tensors on the device.

    Length rules compute their statistics from this object.

    A forward pass of the draft model may also check tokens that prompt lookup has proposed. For
    each chain, the draft model draws one token after the newest token, and one token after each of
    these looked-up tokens. At this point, the host does not know which looked-up tokens the draft
    model has confirmed.

    Attributes:
        chains: Unfinished chains.
        scores: Next-token scores, [chains, 1 + width, vocab or reduced]; their softmax is the
            distribution of each token.
        columns: Column of each drawn token in `scores`, [chains, 1 + width].
        hidden: Last hidden state of the token before each drawn token, [chains, 1 + width, hidden];
            None unless the length rule uses hidden states.
    """

    chains: list[Chain]
    scores: Tensor
    columns: Tensor
    hidden: Tensor | None = None
    _likely: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def two_likeliest(self) -> tuple[Tensor, Tensor]:
        """Return the two most likely tokens at each position, and their probabilities.

        Returns:
            Columns of the tokens in `scores`, and probabilities, each [chains, 1 + width, 2].
        """
        if self._likely is None:
            self._likely = topk_tokens(self.scores, 2)
        return self._likely

    def highest(self) -> Tensor:
        """Return the highest probability of each distribution, [chains, 1 + width]."""
        return self.two_likeliest()[1][..., 0]

    def token_probs(self) -> Tensor:
        """Return the probabilities of the drawn tokens, [chains, 1 + width]."""
        if self.scores.device.type == "cpu":
            likely, probs = self.two_likeliest()
            if np.array_equal(likely.numpy()[..., 0], self.columns.numpy()):
                return probs[..., 0]
        # A negative column marks NaN or infinite logits; 0 replaces it, as in `guess_tokens`.
        columns = self.columns.clamp(min=0)[..., None]
        return self.scores.softmax(-1).gather(-1, columns)[..., 0]

    def entropies(self) -> Tensor:
        """Return the entropies of the distributions in nats, [chains, 1 + width]."""
        return logit_entropies(self.scores)


@dataclass(slots=True)
class NewTokens:
    """The n tokens that a draft forward pass adds to the unfinished chains.

    Attributes:
        chains: Unfinished chains, without the new tokens.
        runs: New tokens of each chain, at least one per chain.
        figures: Statistics of the tokens (`LengthRule.figures`), each [n, ...].
        vocabulary: Ascending ids of a reduced vocabulary; None means the whole vocabulary.
    """

    chains: list[Chain]
    runs: list[list[int]]
    figures: Arrays
    vocabulary: IntArray | None = None

    def seconds(
        self, likely: NDArray[Any], probs: NDArray[np.float32]
    ) -> tuple[list[int], list[float]]:
        """Return the most likely alternative to each new token, and its probability.

        Args:
            likely: Columns of the two most likely tokens, [n, 2].
            probs: Probabilities of these tokens, [n, 2].
        """
        token_ids = likely if self.vocabulary is None else self.vocabulary[likely]
        rows = np.arange(len(likely))
        # If the most likely token is the new token, the alternative is the second most likely one.
        which = (token_ids[:, 0] == [token for run in self.runs for token in run]).astype(np.int64)
        return token_ids[rows, which].tolist(), probs[rows, which].tolist()
