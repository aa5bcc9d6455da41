"""Draft every token of an answer, as training data for an acceptance head.

This module is for draft models that read the target's hidden states (target states). In SpecDec++
(Huang et al. 2024), the draft model reads an answer in which draft tokens replace some tokens.
However, target states exist only for tokens that the target has chosen. The hidden states of such a
draft model therefore depend on a token's position in its draft chain. For this reason, this module
drafts each token of an answer at every chain position, as if the target had accepted all earlier
tokens of the chain. The acceptance head makes the same assumption in decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import layers_read
from paceline.model.loading import draft_lm
from paceline.model.model_view import ModelView
from paceline.model.pairing import pair
from paceline.sampling.sampler import target_scores
from paceline.training.acceptance_head.teacher_forcing import (
    AnsweredPrompts,
    draft_and_label,
    joined_columns,
)
from paceline.training.draft.rows import Rows, hidden_of_rows, shifted
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk

Labeller = Callable[[Tensor, Tensor], list[Tensor]]


def chains_along(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    answered: AnsweredPrompts,
    length: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Draft every token of the answers except the first, once per chain position.

    At chain position k, the draft model treats the k - 1 tokens before the drafted token as
    accepted draft tokens. The function labels each drafted token with its acceptance probability.

    Args:
        target: Target model.
        draft: Draft model that reads the target's hidden states.
        answered: Prompts with their answers.
        length: Number of draft tokens in a chain.
        generator: Random generator for draft tokens, on the CPU.
    Returns:
        Tensors by name, as in `Recording`, on the CPU. The entry "prompts" contains, for each
        drafted token, the index of its prompt in `answered`.
    """
    model, draft_model = CachedLM(target), draft_lm(draft)
    pair(draft_model, target)
    # The view uses the same kernels as decoding.
    drafting = ModelView(draft_model.model, draft_model.products).module
    params = answered.params
    label = partial(draft_and_label, greedy=params.greedy, generator=generator)
    rows = []
    for row, (prompt, answer) in enumerate(zip(answered.prompts, answered.answers, strict=True)):
        hidden, drawn, *labels = draft_along(model, drafting, prompt, answer, params, length, label)
        rows.append((hidden, torch.full_like(drawn, row, dtype=torch.int32), *labels))
    return joined_columns(rows)


@torch.no_grad()
def draft_along(
    target: CachedLM,
    draft: PreTrainedModel,
    prompt: list[int],
    answer: list[int],
    params: SamplingParams,
    length: int,
    label: Labeller,
) -> list[Tensor]:
    """Draft every token of an answer except the first, once per chain position.

    At chain position k, the draft model treats the k - 1 tokens before the drafted token as
    accepted draft tokens.

    Args:
        target: Target model.
        draft: Draft model, attached to the target.
        prompt: Token ids of the prompt.
        answer: Token ids of the target's answer.
        params: Sampling parameters for both models.
        length: Number of draft tokens in a chain.
        label: Function that samples and labels draft tokens, given the scores of both models; see
            `draft_and_label`.
    Returns:
        The draft model's hidden state at each of the n drafted tokens, [n, hidden], followed by the
        tensors that `label` returned.
    """
    chunk = TextChunk(np.array(prompt + answer, dtype=np.int32), len(prompt))
    (states,) = read_states(target, [chunk], layers_read(draft))
    text_ids = torch.from_numpy(chunk.token_ids).long()
    ids = text_ids[None].to(draft.device)
    chosen_by = shifted(states[None].to(draft.device, draft.dtype))
    rows = Rows.for_evaluation(len(chunk), length + 1, chunk.first)
    embedding, decoder = draft.get_input_embeddings(), draft.get_decoder()
    hidden = hidden_of_rows(embedding, decoder, ids, chosen_by, rows)[0]
    drafting = _drafting_rows(rows)
    following = rows.positions[rows.guessed > 0]
    requests = [Request(prompt, params)]
    draft_logits = draft.get_output_embeddings()(hidden[drafting.to(draft.device)])
    draft_scores = target_scores(draft_logits[None], requests, [EMPTY_TREE])[0]
    if params.greedy:
        target_choice = text_ids[following]
    else:
        head = target.model.get_output_embeddings()
        target_states = states[following - 1, 0].to(head.weight.device, head.weight.dtype)
        target_choice = target_scores(head(target_states)[None], requests, [EMPTY_TREE])[0]
    drawn, *labels = label(draft_scores.cpu(), target_choice.cpu())
    drafted = drawn[None].to(draft.device)
    all_rows = rows.with_drafts()
    hidden = hidden_of_rows(embedding, decoder, ids, chosen_by, all_rows, drafted=drafted)[0]
    return [hidden[len(rows.positions) :], drawn, *labels]


def _drafting_rows(rows: Rows) -> Tensor:
    """Return the indices of the rows that predict draft tokens.

    The result has one entry for each row whose own token is a draft token, in the order of these
    rows. The entry is the index of the row that predicts this draft token.
    """
    pairs = list(zip(rows.positions.tolist(), rows.guessed.tolist(), strict=True))
    row_of = {pair: row for row, pair in enumerate(pairs)}
    before = [row_of[position - 1, guessed - 1] for position, guessed in pairs if guessed]
    return torch.tensor(before, dtype=torch.long)
