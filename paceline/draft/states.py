"""The target's hidden states after every token of texts, for what learns to read them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListLike

import torch
from torch import Tensor

from paceline.draft.stretches import Stretch
from paceline.engine.model import CachedLM
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.tree import EMPTY_TREE
from paceline.report.progress import progress_bar


def read_states(model: CachedLM, stretches: ListLike[Stretch], progress: bool = False) -> Iterator[Tensor]:
    """Yield the states of each stretch of text, [tokens, hidden]: what the LM head reads after each token.

    Raises:
        UnsupportedModelError: the model makes its logits without the head it names, so that its states cannot be read.
    """
    _require_states(model)
    decoder = model.model.get_decoder()
    with progress_bar(shown=progress) as bar:
        task = bar.add_task("reading", total=sum(map(len, stretches)))
        for stretch in stretches:
            with torch.no_grad(), model.products.in_force(0):
                ids = torch.from_numpy(stretch.token_ids).long()[None].to(model.device)
                found: Tensor = decoder(input_ids=ids, use_cache=False).last_hidden_state
            yield found[0].cpu()
            bar.advance(task, len(stretch))


def _require_states(model: CachedLM) -> None:
    seq = Sequence([0], SamplingParams(max_new_tokens=1))
    model.open(seq)
    try:
        model.forward_with_states([seq], [EMPTY_TREE])
    finally:
        model.close(seq)
