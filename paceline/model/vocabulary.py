"""Map between the vocabularies of a draft model and its target.

Checkpoints from one model family pad their embeddings to different sizes. Rows beyond the
tokenizer's size have no meaning. A draft model and a target with the same tokenizer therefore
share the ids below the tokenizer's size. The draft model proposes only these shared ids. The draft
model's distributions are renormalised over the shared ids, and indexed by the target's ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from paceline.model.settings import OUT_OF_REACH


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """The token ids that a draft model and its target share.

    Attributes:
        common: Number of shared ids. Ids below this number have the same meaning in both models.
        target_rows: Number of rows in the target's LM head.
        draft_rows: Number of rows in the draft model's embedding.
    """

    common: int
    target_rows: int
    draft_rows: int

    @property
    def shared_rate(self) -> float:
        """Return the fraction of the target's tokens that both models have, from 0 to 1."""
        return self.common / self.target_rows

    @property
    def is_identity(self) -> bool:
        """Return whether both models have exactly the same tokens with the same ids."""
        return self.common == self.target_rows == self.draft_rows

    def logits(self, logits: Tensor, num_reduced: int | None = None) -> Tensor:
        """Return the draft model's logits, indexed by the target's token ids.

        Token ids that the models do not share have probability 0.

        Args:
            logits: Logits, [..., rows of the draft model's LM head] or [..., size of the reduced
                vocabulary]. The method may overwrite logits for the whole vocabulary.
            num_reduced: Number of shared tokens in the reduced vocabulary; None if the logits cover
                the whole vocabulary.
        """
        if num_reduced is not None:
            return (
                logits
                if num_reduced == logits.shape[-1]
                else logits[..., :num_reduced].contiguous()
            )
        unreachable = torch.finfo(logits.dtype).min * OUT_OF_REACH
        if logits.shape[-1] == self.target_rows:
            if self.common < self.target_rows:
                logits[..., self.common :] = unreachable
            return logits
        return functional.pad(
            logits[..., : self.common], (0, self.target_rows - self.common), value=unreachable
        )

    def reduced(self, kept_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those ids of a reduced vocabulary that the target also has."""
        return kept_ids[kept_ids < self.common]

    def readable(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Clip token ids to the number of rows in the draft model's embedding."""
        return (
            token_ids
            if self.draft_rows >= self.target_rows
            else np.minimum(token_ids, self.draft_rows - 1)
        )
