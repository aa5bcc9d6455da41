"""Sample rows of the target's LM head for a training step.

Computing logits for the whole reduced vocabulary would take half the time of a step, although a few
tokens account for nearly all the probability. A step therefore uses the frequent tokens, the tokens
in its texts, and a random sample of the others. Each sampled token represents several tokens, so
the logarithm of their number is added to the sampled token's logit. This method is called sampled
softmax (Bengio and Senecal 2008; Jean et al. 2015).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.training.draft.settings import FREQUENT_SHARE, SAMPLING_INTERVAL
from paceline.training.text_chunks import smallest_cover


class SampledHead:
    """Samples rows of an LM head for each training step.

    Args:
        weight: Rows of the LM head for the reduced vocabulary, [rows, hidden].
        bias: Bias of these rows, [rows]; None if the LM head has no bias.
        token_ids: Token ids of the rows, [rows].
        counts: Number of times that each token occurs as a prediction target, [vocabulary].
        dtype: Dtype of the matrix products.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        token_ids: Tensor,
        counts: NDArray[np.int64],
        dtype: torch.dtype,
    ) -> None:
        self._weight: Tensor = weight.detach().to(dtype)
        self._bias = (
            weight.new_zeros(len(weight), dtype=torch.float32) if bias is None else bias.float()
        )
        kept = token_ids.cpu().numpy()
        self._row_of_token = np.full(len(counts), len(kept))  # len(kept): no row
        self._row_of_token[kept] = np.arange(len(kept))
        self._frequent = np.zeros(len(kept) + 1, dtype=bool)
        self._frequent[smallest_cover(counts[kept], FREQUENT_SHARE)] = True

    def sample(self, token_ids: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Sample rows for one step; return their weights [n, hidden] and biases [n].

        Args:
            token_ids: Token ids in the step's texts.
            random: Random generator for the sample.
        """
        certain = self._frequent.copy()
        certain[self._row_of_token[token_ids.cpu().numpy()]] = True
        certain = certain[:-1]
        sampled = random.random(len(certain)) < 1 / SAMPLING_INTERVAL
        drawn = torch.from_numpy(np.flatnonzero(certain | sampled))
        offset = torch.where(torch.from_numpy(certain)[drawn], 0.0, math.log(SAMPLING_INTERVAL))
        rows, device = drawn.to(self._weight.device), self._weight.device
        return self._weight[rows], (self._bias[rows] + offset.to(device)).to(self._weight.dtype)
