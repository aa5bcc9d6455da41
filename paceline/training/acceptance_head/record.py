"""Record what an acceptance head learns from (Huang et al. 2024, "SpecDec++", section 3.3):
answers, and drafted tokens.

For every prompt the target answers, or has answered (`paceline record`): X. The draft reads prompt
and X; at every position i it draws one token Y_i from the distribution it will draw from in use,
and P_i = min(1, target/draft) is the probability that Y_i is accepted. The features are the draft's
hidden states on a mixed sequence Z, which keeps X_i with probability `keep` and has Y_i otherwise;
only the latter positions are recorded.

What is different here: unlike in the public code, both distributions are warped as in use
(temperature, top_k, top_p, min_p), and `mixtures` sequences Z may be made of one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel

from paceline import demo
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import uses_target_states
from paceline.model.identity import Sketch, model_identity
from paceline.model.loading import draft_lm, load_draft, load_model
from paceline.model.model_view import ModelView
from paceline.model.pairing import pair, shared_vocabulary
from paceline.model.vocabulary import SharedVocabulary
from paceline.report.progress import progress_bar
from paceline.sampling.sampler import target_scores
from paceline.training.acceptance_head.along import draft_along
from paceline.training.acceptance_head.answers import TargetAnswers, find_answers
from paceline.training.acceptance_head.recording import Recording, RecordingFolder, read_recording
from paceline.training.acceptance_head.settings import RecordConfig

_FIGURES = ("log_probs", "entropies", "labels", "top_probs")


def record(
    config: RecordConfig,
    target: PreTrainedModel | None = None,
    draft: PreTrainedModel | None = None,
    tokenizer: Any = None,
    progress: bool = False,
) -> Recording:
    """Record, or continue an interrupted recording.

    Args:
        config: what is recorded.
        target: the target, if it is loaded already.
        draft: the draft model, if it is loaded already.
        tokenizer: as in `LLM`.
        progress: whether to show a bar.
    Raises:
        ConfigError: models or prompts that cannot be used, or a folder that was begun otherwise.
    """
    target, draft = _models(config, target, draft)
    answers = find_answers(config, target, draft, tokenizer)
    starts = range(0, len(answers.prompts), config.batch)
    folder = RecordingFolder(
        config.out, _settings(config, answers, target, draft, len(starts)), answers.prompts
    )
    columns = (
        TextColumn("recording"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeRemainingColumn(),
    )
    with progress_bar(*columns, shown=progress) as bar:
        for batch, start in enumerate(bar.track(starts)):
            if not folder.has(batch):
                group = range(start, min(start + config.batch, len(answers.prompts)))
                folder.write(batch, _record_batch(config, answers, target, draft, group))
    return read_recording(config.out)


def _record_batch(
    config: RecordConfig,
    answers: TargetAnswers,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    group: range,
) -> dict[str, Tensor]:
    """Get the answers to the prompts of one batch and draft beside them; tensors as in
    `Recording`.
    """
    asked, said = [answers.prompts[place] for place in group], answers.batch(group)
    generator = torch.Generator().manual_seed((answers.sampling.seed << 32) + group[0])
    if uses_target_states(draft):
        columns = chains_along(
            target, draft, asked, said, answers.sampling, config.mixtures, generator
        )
    else:
        with torch.no_grad():  # in inference mode some classes of quantised weights cannot be used
            columns = teacher_force(
                target,
                draft,
                asked,
                said,
                answers.sampling,
                config.keep,
                config.mixtures,
                generator,
            )
    hidden_size = model_identity(draft)[1]
    return {
        **columns,
        "hidden": columns["hidden"][:, :hidden_size].to(torch.bfloat16),
        "prompts": columns["prompts"] + group[0],
    }


def teacher_force(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Sequence[list[int]],
    answers: Sequence[list[int]],
    params: SamplingParams,
    keep: float,
    mixtures: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Draft one token beside each token of the answers, and note how likely the target is to accept
    it.

    Args:
        target: the target.
        draft: the draft model.
        prompts: token ids of each, at least one.
        answers: token ids of each, at least one; the target's own.
        params: how draft and target choose their tokens.
        keep: as in `RecordConfig`.
        mixtures: as in `RecordConfig`.
        generator: draws the drafted tokens and the mixtures, on the CPU.
    Returns:
        tensors as in `Recording`, on the CPU; "prompts" counts from 0.
    """
    # where the first token of each answer is predicted
    starts = [len(prompt) - 1 for prompt in prompts]
    count = max(map(len, answers))
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    # A greedy answer is what the target says at every place: nothing of it needs to be run again.
    asked = (draft,) if params.greedy else (draft, target)
    shared = shared_vocabulary(draft, target)
    logits = [
        run_from(model, texts, starts, count, None if model is target else shared)[0].cpu()
        for model in asked
    ]
    drafted = []
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        requests = [Request(prompt, params)]
        scores = [
            target_scores(one[row, : len(answer)][None], requests, [EMPTY_TREE])[0]
            for one in logits
        ]
        said = torch.tensor(answer) if params.greedy else scores[1]
        drafted.append(_draft_and_label(scores[0], said, params.greedy, generator))
    columns: dict[str, list[Tensor]] = {name: [] for name in ("hidden", "prompts", *_FIGURES)}
    for _ in range(mixtures):
        kept = [torch.rand(len(answer), generator=generator) < keep for answer in answers]
        mixed = [
            prompt + torch.where(keeps, torch.tensor(answer), drawn).tolist()
            for prompt, answer, keeps, (drawn, *_) in zip(
                prompts, answers, kept, drafted, strict=True
            )
        ]
        hidden = run_from(draft, mixed, [start + 1 for start in starts], count, shared)[1].cpu()
        for row, (keeps, (drawn, *values)) in enumerate(zip(kept, drafted, strict=True)):
            places = (
                hidden[row, : len(drawn)],
                torch.full_like(drawn, row, dtype=torch.int32),
                *values,
            )
            for column, place in zip(columns.values(), places, strict=True):
                column.append(place[~keeps])
    return {name: torch.cat(values) for name, values in columns.items()}


def chains_along(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Sequence[list[int]],
    answers: Sequence[list[int]],
    params: SamplingParams,
    places: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """The same for a draft that reads the target's states: each token drafted in each of so many
    places of a chain.
    """
    model, in_use = CachedLM(target), draft_lm(draft)
    pair(in_use, target)
    drafting = ModelView(in_use.model, in_use.products).module  # it drafts as it is used
    label = partial(_draft_and_label, greedy=params.greedy, generator=generator)
    columns: dict[str, list[Tensor]] = {name: [] for name in ("hidden", "prompts", *_FIGURES)}
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        hidden, drawn, *values = draft_along(model, drafting, prompt, answer, params, places, label)
        found = (hidden, torch.full_like(drawn, row, dtype=torch.int32), *values)
        for column, one in zip(columns.values(), found, strict=True):
            column.append(one.cpu())
    return {name: torch.cat(values) for name, values in columns.items()}


def _draft_and_label(
    draft_scores: Tensor, said: Tensor, greedy: bool, generator: torch.Generator
) -> list[Tensor]:
    """Draw a token from each row of the draft's scores, and label it by the target's.

    Args:
        draft_scores: [n, vocab].
        said: [n, vocab], the target's scores; greedy: [n], what it says.
    Returns:
        [n] each: token ids, log-probabilities, entropies, labels, top probabilities.
    """
    draft_log_probs = draft_scores.log_softmax(-1)
    draft_probs = draft_log_probs.exp()
    drawn = (
        draft_scores.argmax(-1)
        if greedy
        else torch.multinomial(draft_probs, 1, generator=generator)[:, 0]
    )
    log_probs = draft_log_probs.gather(-1, drawn[:, None])[:, 0]
    if greedy:
        labels = (said == drawn).float()
    else:
        labels = (
            (said.log_softmax(-1).gather(-1, drawn[:, None])[:, 0] - log_probs).clamp(max=0).exp()
        )
    return [drawn, log_probs, torch.special.entr(draft_probs).sum(-1), labels, draft_probs.amax(-1)]


def run_from(
    model: PreTrainedModel,
    texts: Sequence[list[int]],
    starts: Sequence[int],
    count: int,
    shared: SharedVocabulary | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one plain forward over `texts`, with the LM head on `count` positions of each from its
    start on; the last one repeats.

    Args:
        shared: what the model, a draft, shares with its target, whose ids the logits are then by.
    Returns:
        logits [batch, count, vocab] and what the LM head was fed, [batch, count, hidden].
    Raises:
        UnsupportedModelError: the model has no LM head of its own.
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
    columns = (
        torch.tensor(starts, device=device)[:, None] + torch.arange(count, device=device)
    ).clamp_(max=longest - 1)
    seen: list[Tensor] = []

    def pick(_: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        seen.append(inputs[0].take_along_dim(columns[:, :, None], dim=1))
        return seen[0]

    hook = lm_head.register_forward_pre_hook(pick)
    try:
        logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    finally:
        hook.remove()
    return logits if shared is None else shared.logits(logits), seen[0]


def _models(
    config: RecordConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None
) -> tuple[PreTrainedModel, PreTrainedModel]:
    wanted = demo.draft_name(config.models.model, config.models.draft_model)
    if draft is None and wanted is None:
        raise ConfigError(
            "head record: got no draft model; expected one to record. Pass draft_model=DIRECTORY"
            " (--draft-model)."
        )
    if target is None:
        target = load_model(
            demo.target_of(config.models.model), config.models.dtype, config.models.device
        )
    if draft is None:
        draft = load_draft(str(wanted), config.models.dtype, str(target.device))
    return target, draft


def _settings(
    config: RecordConfig,
    answers: TargetAnswers,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    batches: int,
) -> dict[str, Any]:
    """Return what makes one recording differ from another."""
    fingerprint, hidden_size = model_identity(draft)
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
    return {
        "target": config.models.model,
        "draft": config.models.draft_model or config.models.model,
        "files": [Path(path).name for path in config.selection.prompts],
        **answers.origin,
        "target_fingerprint": model_identity(target)[0],
        "draft_fingerprint": fingerprint,
        "draft_sketch": Sketch.from_model(draft).encode(),
        "hidden_size": hidden_size,
        "vocab_size": int(draft.config.get_text_config(decoder=True).vocab_size),
        "dtype": str(target.dtype).removeprefix("torch."),
        "batches": batches,
        "keep": config.keep,
        "mixtures": config.mixtures,
        **{name: getattr(answers.sampling, name) for name in names},
        "batch": config.batch,
        **({"cut": answers.cut} if answers.cut else {}),
    }
