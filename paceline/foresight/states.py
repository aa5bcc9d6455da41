"""What foresight learns from: the target's hidden states after every token of texts."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.draft.stretches import Stretch
from paceline.engine.foresight.weights import ends
from paceline.engine.model import CachedLM
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.tree import EMPTY_TREE
from paceline.report.progress import progress_bar

AHEAD = 2  # places behind a state that it is taught about


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Stretches behind one another.

    Attributes:
        states: [n, hidden], what the LM head reads after each token. token_ids: [n].
        places: those with `AHEAD` more behind them in their stretch. answers: of these, those within answers.
    """

    states: Tensor
    token_ids: Tensor
    places: Tensor
    answers: Tensor


@torch.inference_mode()
def states_of(model: CachedLM, stretches: ListLike[Stretch], progress: bool = False) -> States:
    """Return the states of stretches of text.

    Raises:
        UnsupportedModelError: the model makes its logits without the head it names, so that its states cannot be read.
    """
    _require_states(model)
    states, token_ids, places, answers = [], [], [], []
    start = 0
    decoder = model.model.get_decoder()
    with progress_bar(shown=progress) as bar, model.products.in_force(0):
        task = bar.add_task("reading", total=sum(map(len, stretches)))
        for stretch in stretches:
            ids = torch.from_numpy(stretch.token_ids).long()
            found: Tensor = decoder(input_ids=ids[None].to(model.device), use_cache=False).last_hidden_state
            states.append(found[0].cpu())
            token_ids.append(ids)
            places.append(torch.arange(start, start + max(0, len(ids) - AHEAD)))
            answers.append(places[-1][stretch.first - 1 :])
            start += len(ids)
            bar.advance(task, len(ids))
    hidden = torch.empty(0, ends(model)[1].in_features)
    none = torch.empty(0, dtype=torch.long)
    return States(
        torch.cat(states or [hidden]), torch.cat(token_ids or [none]), torch.cat(places or [none]), torch.cat(answers or [none])
    )


def _require_states(model: CachedLM) -> None:
    seq = Sequence([0], SamplingParams(max_new_tokens=1))
    model.open(seq)
    try:
        model.forward_with_states([seq], [EMPTY_TREE])
    finally:
        model.close(seq)
