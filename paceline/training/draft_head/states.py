"""Collect the target's hidden states after every token of the training text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.draft_head.weights import ends
from paceline.model.cached_lm import CachedLM
from paceline.training.draft_head.settings import TRAINED_LEVELS
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Hold the hidden states of chunks, one chunk after the other.

    Attributes:
        states: Input of the LM head after each token, [n, hidden].
        token_ids: Token ids, [n].
        positions: Indices of the tokens that are followed by `TRAINED_LEVELS` tokens of their
            chunk.
        answers: Those of `positions` that are within answers.
    """

    states: Tensor
    token_ids: Tensor
    positions: Tensor
    answers: Tensor


def states_of(model: CachedLM, chunks: Sequence[TextChunk], progress: bool = False) -> States:
    """Return the hidden states of chunks of text.

    Args:
        model: Target model.
        chunks: Chunks to read.
        progress: Show a progress bar.
    Raises:
        UnsupportedModelError: The model computes its logits without the LM head that it names.
    """
    hidden = [torch.empty(0, ends(model)[1].in_features)]
    token_ids, positions, answers = ([torch.empty(0, dtype=torch.long)] for _ in range(3))
    start = 0
    for chunk, states in zip(chunks, read_states(model, chunks, progress=progress), strict=True):
        hidden.append(states[:, 0])
        token_ids.append(torch.from_numpy(chunk.token_ids).long())
        positions.append(torch.arange(start, start + max(0, len(chunk) - TRAINED_LEVELS)))
        answers.append(positions[-1][chunk.first - 1 :])
        start += len(chunk)
    columns = (hidden[1:] or hidden, token_ids, positions, answers)
    return States(*(torch.cat(column) for column in columns))
