"""Record training data for an acceptance head.

The method is that of SpecDec++ (Huang et al. 2024, section 3.3).

Let X be the target's answer to a prompt, either generated for the recording or read from a file
that `paceline record` wrote. The draft model reads the prompt and X. At every position i, it
samples a draft token Y_i, as in decoding. The label is the probability that the target accepts Y_i:

    P_i = min(1, target probability / draft probability)

A mixed sequence Z contains X_i with probability `keep` at each position i, and Y_i otherwise. The
features are the hidden states of the draft model when it reads Z. The recording contains only the
positions with Y_i.

There are two differences from the authors' code. First, the sampling parameters (temperature,
top_k, top_p, min_p) change the distributions of both models, as in decoding. Second, one answer may
yield several mixed sequences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline import demo
from paceline.errors import ConfigError
from paceline.model.eagle.modules import uses_target_states
from paceline.model.identity import Sketch, model_identity
from paceline.model.loading import load_draft, load_model
from paceline.report.progress import progress_bar
from paceline.training.acceptance_head.along import chains_along
from paceline.training.acceptance_head.answers import TargetAnswers, find_answers
from paceline.training.acceptance_head.recording import Recording, RecordingFolder, read_recording
from paceline.training.acceptance_head.settings import RecordConfig
from paceline.training.acceptance_head.teacher_forcing import AnsweredPrompts, teacher_force


def record(
    config: RecordConfig,
    target: PreTrainedModel | None = None,
    draft: PreTrainedModel | None = None,
    tokenizer: Any = None,
    progress: bool = False,
) -> Recording:
    """Record training data, or complete an interrupted recording.

    Args:
        config: Settings of the recording.
        target: Target model. Default: load the model named in the settings.
        draft: Draft model. Default: load the model named in the settings.
        tokenizer: Tokenizer for the prompts: directory, hub id or object. Default: the target's.
        progress: Whether to show a progress bar.
    Raises:
        ConfigError: The models or prompts cannot be used, or the folder contains a recording with
            different settings.
    """
    target, draft = _models(config, target, draft)
    answers = find_answers(config, target, draft, tokenizer)
    starts = range(0, len(answers.prompts), config.batch)
    settings = _settings(config, answers, target, draft, len(starts))
    folder = RecordingFolder(config.out, settings, answers.prompts)
    with progress_bar(shown=progress) as bar:
        for batch, start in enumerate(bar.track(starts, description="recording")):
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
    """Draft and label tokens for a range of prompts, and return the tensors to store."""
    prompts = [answers.prompts[number] for number in group]
    answered = AnsweredPrompts(prompts, answers.batch(group), answers.sampling)
    generator = torch.Generator().manual_seed((answers.sampling.seed << 32) + group[0])
    if uses_target_states(draft):
        columns = chains_along(target, draft, answered, config.mixtures, generator)
    else:
        with torch.no_grad():  # some quantised weights do not support inference mode
            columns = teacher_force(
                target, draft, answered, config.keep, config.mixtures, generator
            )
    hidden_size = model_identity(draft)[1]
    return {
        **columns,
        "hidden": columns["hidden"][:, :hidden_size].to(torch.bfloat16),
        "prompts": columns["prompts"] + group[0],
    }


def _models(
    config: RecordConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None
) -> tuple[PreTrainedModel, PreTrainedModel]:
    models = config.models
    draft_name = demo.draft_name(models.model, models.draft_model)
    if draft is None and draft_name is None:
        raise ConfigError(
            "head record: got no draft model; expected one to record. Pass"
            " \0draft_model=DIRECTORY\0."
        )
    if target is None:
        target = load_model(demo.target_of(models.model), models.dtype, models.device)
    if draft is None:
        draft = load_draft(str(draft_name), models.dtype, str(target.device))
    return target, draft


def _settings(
    config: RecordConfig,
    answers: TargetAnswers,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    batches: int,
) -> dict[str, Any]:
    """Return the settings that identify a recording, for its file `record.json`."""
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
