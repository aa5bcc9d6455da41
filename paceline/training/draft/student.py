"""What a training does with a draft, whichever kind it is: one of its own embedding, or one that
reads the target's states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from paceline.training.draft.chains import Chains
from paceline.training.draft.evaluate import judge
from paceline.training.draft.first_model import first_model
from paceline.training.draft.loss import distillation_loss
from paceline.training.draft.settings import DraftTraining
from paceline.training.text_chunks import TextBatch, TextChunk, collated


class Student(Protocol):
    """A draft while it is trained.

    Attributes:
        model: the draft, in float32.
    """

    model: PreTrainedModel

    def loss(self, stretches: Sequence[TextChunk], number: int) -> Tensor:
        """Return what is wrong with what it says on a batch, the `number`-th of the training."""

    def judge(self, held_out: Sequence[TextChunk], length: int) -> Chains:
        """Return what its chains of `length` are worth on answers."""


class IndependentStudent:
    """A draft with an embedding of its own, which is its head as well.

    Args:
        kept: tokens of its reduced vocabulary, ascending.
    """

    def __init__(
        self, target: PreTrainedModel, config: DraftTraining, kept: NDArray[np.int64]
    ) -> None:
        self.model = first_model(target, config).to(target.device)
        self._kept = torch.from_numpy(kept).to(self.model.device)
        self._places = np.full(self.model.config.vocab_size, -1, dtype=np.int64)
        self._places[kept] = np.arange(len(kept))

    def loss(self, stretches: Sequence[TextChunk], number: int) -> Tensor:
        """Return the mean cross-entropy with the target's distribution, or with the next token."""
        batch = TextBatch(*(one.to(self.model.device) for one in collated(stretches, self._places)))
        hidden: Tensor = self.model.get_decoder()(
            input_ids=batch.token_ids, use_cache=False
        ).last_hidden_state
        weight = self.model.get_input_embeddings().weight[self._kept]
        return distillation_loss(
            hidden.flatten(0, 1)[batch.places], weight, batch.targets, batch.probs
        )

    def judge(self, held_out: Sequence[TextChunk], length: int) -> Chains:
        """Return what its chains are worth."""
        return judge(self.model, held_out, length, self._kept)
