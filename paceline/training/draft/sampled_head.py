"""The target's LM head as a draft learns through it: over part of the kept tokens, drawn anew in
each step.

Logits of all of them are half of a step's work, and nearly all of the probability is with few. So a
step takes the tokens that are often said, those of its own texts, and a share of the others, each
of which stands for so many of its like: the logarithm of that number is added to its logits, the
draft's and the target's (sampled softmax: Bengio and Senecal 2008; Jean et al. 2015).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.training.text_chunks import fewest

_OFTEN = 0.9  # of what is said, made up by the tokens that every step takes
_STANDS_FOR = 8  # so many, each of the others that is taken


class SampledHead:
    """Draws what a step takes.

    Args:
        head: `TargetStateHead`, attached. counts: [vocab], how often each token is to be predicted.
            dtype: of the products.
    """

    def __init__(self, head: Any, counts: NDArray[np.int64], dtype: torch.dtype) -> None:
        self._weight: Tensor = head.kept.to(dtype)
        self._bias = (
            head.kept.new_zeros(len(head.kept), dtype=torch.float32)
            if head.added is None
            else head.added.float()
        )
        kept = head.token_ids.cpu().numpy()
        self._places = np.full(len(counts), len(kept))  # the last: not kept
        self._places[kept] = np.arange(len(kept))
        self._often = np.zeros(len(kept) + 1, dtype=bool)
        self._often[fewest(counts[kept], _OFTEN)] = True

    def drawn(self, said: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return weight [n, states] and bias [n] of the tokens of one step.

        Args:
            said: token ids of its texts.
        """
        surely = self._often.copy()
        surely[self._places[said.cpu().numpy()]] = True
        surely = surely[:-1]
        drawn = torch.from_numpy(
            np.flatnonzero(surely | (random.random(len(surely)) < 1 / _STANDS_FOR))
        )
        more = torch.where(torch.from_numpy(surely)[drawn], 0.0, math.log(_STANDS_FOR))
        rows, device = drawn.to(self._weight.device), self._weight.device
        return self._weight[rows], (self._bias[rows] + more.to(device)).to(self._weight.dtype)
