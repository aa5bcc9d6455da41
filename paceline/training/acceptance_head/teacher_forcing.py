"""Draft tokens along an answer, and label them with acceptance probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.errors import UnsupportedModelError
from paceline.model.pairing import shared_vocabulary
from paceline.model.vocabulary import SharedVocabulary
from paceline.sampling.sampler import target_scores

# Names of `Recording`'s tensors, in the order in which drafting returns the tensors.
DRAFT_COLUMNS = ("hidden", "prompts", "log_probs", "entropies", "labels", "top_probs")


class AnsweredPrompts(NamedTuple):
    """Prompts with the target's answers.

    Attributes:
        prompts: Token ids of each prompt; at least one token per prompt.
        answers: Token ids of each answer; at least one token per answer.
        params: Sampling parameters for both models.
    """

    prompts: Sequence[list[int]]
    answers: Sequence[list[int]]
    params: SamplingParams


def joined_columns(rows: Iterable[Sequence[Tensor]]) -> dict[str, Tensor]:
    """Concatenate the tensors of several answers, and return them by name.

    Args:
        rows: For each answer, one tensor per name in `DRAFT_COLUMNS`.
    """
    columns = zip(*rows, strict=True)
    return {
        name: torch.cat([tensor.cpu() for tensor in column])
        for name, column in zip(DRAFT_COLUMNS, columns, strict=True)
    }


def teacher_force(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    answered: AnsweredPrompts,
    keep: float,
    mixtures: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Draft a token at each position of the answers, and build mixed sequences.

    A mixed sequence is an answer in which draft tokens replace some of the target's tokens. The
    draft model reads each mixed sequence. The result covers the replaced positions of all mixed
    sequences.

    Args:
        target: Target model.
        draft: Independent draft model.
        answered: Prompts with their answers.
        keep: Probability that a position of a mixed sequence keeps the target's token; at least 0
            and less than 1.
        mixtures: Number of mixed sequences per answer; at least 1.
        generator: Random generator for draft tokens and mixtures, on the CPU.
    Returns:
        Tensors by name, as in `Recording`, on the CPU. The entry "prompts" contains indices into
        `answered`.
    """
    prompts, answers, _ = answered
    # Position in each prompt whose logits predict the first token of the answer.
    starts = [len(prompt) - 1 for prompt in prompts]
    count = max(map(len, answers))
    shared = shared_vocabulary(draft, target)
    drafted = _drafted(target, draft, answered, shared, generator)
    rows = []
    for _ in range(mixtures):
        keep_masks = [torch.rand(len(answer), generator=generator) < keep for answer in answers]
        mixed = [
            prompt + torch.where(keep_mask, torch.tensor(answer), drawn).tolist()
            for prompt, answer, keep_mask, (drawn, *_) in zip(
                prompts, answers, keep_masks, drafted, strict=True
            )
        ]
        hidden = run_from(draft, mixed, [start + 1 for start in starts], count, shared)[1].cpu()
        for row, (keep_mask, (drawn, *labels)) in enumerate(zip(keep_masks, drafted, strict=True)):
            numbers = torch.full_like(drawn, row, dtype=torch.int32)
            columns = (hidden[row, : len(drawn)], numbers, *labels)
            rows.append([column[~keep_mask] for column in columns])
    return joined_columns(rows)


def _drafted(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    answered: AnsweredPrompts,
    shared: SharedVocabulary | None,
    generator: torch.Generator,
) -> list[list[Tensor]]:
    """Sample draft tokens for each answer, and compute their acceptance probabilities."""
    prompts, answers, params = answered
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    starts, count = [len(prompt) - 1 for prompt in prompts], max(map(len, answers))
    # A greedy answer already contains the target's choices, so the target need not run again.
    models = (draft,) if params.greedy else (draft, target)
    logits = [
        run_from(model, texts, starts, count, None if model is target else shared)[0].cpu()
        for model in models
    ]
    drafted = []
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        requests = [Request(prompt, params)]
        scores = [
            target_scores(model_logits[row, : len(answer)][None], requests, [EMPTY_TREE])[0]
            for model_logits in logits
        ]
        choice = torch.tensor(answer) if params.greedy else scores[1]
        drafted.append(draft_and_label(scores[0], choice, params.greedy, generator))
    return drafted


def draft_and_label(
    draft_scores: Tensor, target_choice: Tensor, greedy: bool, generator: torch.Generator
) -> list[Tensor]:
    """Choose a draft token at each position, and label the token.

    The label is the probability that the target accepts the token. In greedy decoding, the draft
    token is the draft model's argmax; otherwise, it is sampled.

    Args:
        draft_scores: The draft model's scores after sampling parameters, [n, vocabulary].
        target_choice: The target's scores, [n, vocabulary]; for greedy decoding, the target's
            tokens, [n].
        greedy: Whether decoding is greedy.
        generator: Random generator for the draft tokens.
    Returns:
        Token ids of the draft tokens, their log-probabilities, the entropies of the draft
        distributions, the labels, and the highest draft probabilities, each [n].
    """
    draft_log_probs = draft_scores.log_softmax(-1)
    draft_probs = draft_log_probs.exp()
    if greedy:
        drawn = draft_scores.argmax(-1)
    else:
        drawn = torch.multinomial(draft_probs, 1, generator=generator)[:, 0]
    log_probs = draft_log_probs.gather(-1, drawn[:, None])[:, 0]
    if greedy:
        labels = (target_choice == drawn).float()
    else:
        target_log_probs = target_choice.log_softmax(-1).gather(-1, drawn[:, None])[:, 0]
        labels = (target_log_probs - log_probs).clamp(max=0).exp()
    entropies = torch.special.entr(draft_probs).sum(-1)
    return [drawn, log_probs, entropies, labels, draft_probs.amax(-1)]


def run_from(
    model: PreTrainedModel,
    texts: Sequence[list[int]],
    starts: Sequence[int],
    count: int,
    shared: SharedVocabulary | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one forward pass, and apply the LM head only to `count` positions per text.

    Args:
        model: Model to run.
        texts: Token ids of each text.
        starts: For each text, the first position to which the LM head is applied.
        count: Number of positions per text to which the LM head is applied. Positions after the end
            of the longest text repeat that text's last position.
        shared: Vocabulary that a draft model shares with its target. If given, the logits have one
            column per token id of the target.
    Returns:
        Logits [texts, count, vocabulary] and the LM head's inputs [texts, count, hidden].
    Raises:
        UnsupportedModelError: The model has no LM head.
    """
    lm_head = model.get_output_embeddings()
    if lm_head is None:
        raise UnsupportedModelError(
            f"head record: got {type(model).__name__} without an LM head; expected one whose input"
            " can be recorded. Use another model."
        )
    longest, device = max(map(len, texts)), model.device
    padded = np.array([text + [0] * (longest - len(text)) for text in texts])
    ids = torch.from_numpy(padded if shared is None else shared.readable(padded)).to(device)
    mask = torch.tensor(
        [[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=device
    )
    positions = torch.tensor(starts, device=device)[:, None] + torch.arange(count, device=device)
    positions.clamp_(max=longest - 1)
    inputs_seen: list[Tensor] = []

    def select(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        inputs_seen.append(inputs[0].take_along_dim(positions[:, :, None], dim=1))
        return inputs_seen[0]

    hook = lm_head.register_forward_pre_hook(select)
    try:
        logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    finally:
        hook.remove()
    return logits if shared is None else shared.logits(logits), inputs_seen[0]
