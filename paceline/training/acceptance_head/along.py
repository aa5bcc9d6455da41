"""What an acceptance head learns from where the draft reads the target's states: its own chains
along an answer, place by place.

The paper mixes drafted tokens into the answer, so that the draft's states are those of a text that
it has partly drafted. A draft that reads states has others behind its own guesses than behind the
target's tokens; so each token of an answer is drafted in each place of a chain, behind tokens that
were accepted, which is what the head's probability is about.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import layers_read
from paceline.sampling.sampler import target_scores
from paceline.training.draft.rows import Rows, hidden_of_rows, shifted
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk

Labelled = Callable[[Tensor, Tensor], list[Tensor]]


@torch.no_grad()
def draft_along(
    target: CachedLM,
    draft: PreTrainedModel,
    prompt: list[int],
    answer: list[int],
    params: SamplingParams,
    places: int,
    labelled: Labelled,
) -> list[Tensor]:
    """Draft each token of an answer but the first in each place of a chain.

    Args:
        draft: attached to the target. answer: token ids, the target's own. params: how draft and
            target choose their tokens.
        places: of a chain.
        labelled: draws tokens of the draft's scores [n, vocab], and labels them by the target's, or
            by what it says; on the CPU.
    Returns:
        the draft's states [n, hidden], then what `labelled` returns.
    """
    stretch = TextChunk(np.array(prompt + answer, dtype=np.int32), len(prompt))
    (states,) = read_states(target, [stretch], layers_read(draft))
    text_ids = torch.from_numpy(stretch.token_ids).long()
    ids = text_ids[None].to(draft.device)
    chosen_by = shifted(states[None].to(draft.device, draft.dtype))
    text = Rows.for_evaluation(len(stretch), places + 1, stretch.first)
    embedding, decoder = draft.get_input_embeddings(), draft.get_decoder()
    hidden = hidden_of_rows(embedding, decoder, ids, chosen_by, text)[0]
    # A token is drafted by the row before it, which has one guess fewer behind it.
    pairs = list(zip(text.positions.tolist(), text.guessed.tolist(), strict=True))
    at = {pair: row for row, pair in enumerate(pairs)}
    by = torch.tensor(
        [at[place - 1, guessed - 1] for place, guessed in pairs if guessed], dtype=torch.long
    )
    following = text.positions[text.guessed > 0]
    requests = [Request(prompt, params)]
    own = target_scores(
        draft.get_output_embeddings()(hidden[by.to(draft.device)])[None], requests, [EMPTY_TREE]
    )[0]
    if params.greedy:
        said = text_ids[following]
    else:
        head = target.model.get_output_embeddings()
        said = target_scores(
            head(states[following - 1, 0].to(head.weight.device, head.weight.dtype))[None],
            requests,
            [EMPTY_TREE],
        )[0]
    drawn, *values = labelled(own.cpu(), said.cpu())
    drafted = drawn[None].to(draft.device)
    behind = hidden_of_rows(
        embedding, decoder, ids, chosen_by, text.with_drafts(), drafted=drafted
    )[0, len(pairs) :]
    return [behind, drawn, *values]
