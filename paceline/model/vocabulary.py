"""The vocabulary that a draft model and its target share.

Checkpoints of one family pad their embedding to different sizes, and the rows beyond the tokenizer
mean nothing. A draft and a target with the same tokenizer therefore share the ids below the
tokenizer's size; everything a draft model proposes is among these, and its distributions are
renormalised over them and indexed by the target's ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from paceline.model.reduced_vocabulary import OUT_OF_REACH


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """Which ids a draft model and its target share, and how one's logits are read by the other.

    Attributes:
        common: the ids below it mean the same to both.
        target_rows: rows of the target's LM head.
        draft_rows: ids that the draft's embedding takes.
    """

    common: int
    target_rows: int
    draft_rows: int

    def logits(self, logits: Tensor, kept: int | None = None) -> Tensor:
        """Return the draft's logits by the target's ids; ids that are not shared get probability 0.

        Args:
            logits: [..., rows of the draft's LM head], which may be overwritten; or [..., kept
                tokens].
            kept: how many of the kept tokens are shared, where the logits are of these alone.
        """
        if kept is not None:
            return logits if kept == logits.shape[-1] else logits[..., :kept].contiguous()
        unreachable = torch.finfo(logits.dtype).min * OUT_OF_REACH
        if logits.shape[-1] == self.target_rows:
            if self.common < self.target_rows:
                logits[..., self.common :] = unreachable
            return logits
        return functional.pad(
            logits[..., : self.common], (0, self.target_rows - self.common), value=unreachable
        )

    def readable(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids that the draft's embedding takes: those beyond it become its last one."""
        return (
            token_ids
            if self.draft_rows >= self.target_rows
            else np.minimum(token_ids, self.draft_rows - 1)
        )
