"""Collect the target's hidden states after every token of the training text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.draft_head.weights import ends
from paceline.model.cached_lm import CachedLM
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk

AHEAD = 2  # places behind a state that it is taught about


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Stretches behind one another.

    Attributes:
        states: [n, hidden], what the LM head reads after each token. token_ids: [n].
        places: those with `AHEAD` more behind them in their stretch. answers: of these, those
            within answers.
    """

    states: Tensor
    token_ids: Tensor
    places: Tensor
    answers: Tensor


def states_of(model: CachedLM, stretches: Sequence[TextChunk], progress: bool = False) -> States:
    """Return the states of stretches of text.

    Raises:
        UnsupportedModelError: the model makes its logits without the head it names, so that its
            states cannot be read.
    """
    states, token_ids, places, answers = [], [], [], []
    start = 0
    for stretch, found in zip(
        stretches, read_states(model, stretches, progress=progress), strict=True
    ):
        states.append(found[:, 0])
        token_ids.append(torch.from_numpy(stretch.token_ids).long())
        places.append(torch.arange(start, start + max(0, len(stretch) - AHEAD)))
        answers.append(places[-1][stretch.first - 1 :])
        start += len(stretch)
    hidden = torch.empty(0, ends(model)[1].in_features)
    none = torch.empty(0, dtype=torch.long)
    return States(
        torch.cat(states or [hidden]),
        torch.cat(token_ids or [none]),
        torch.cat(places or [none]),
        torch.cat(answers or [none]),
    )
