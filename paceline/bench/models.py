"""Load a benchmark's models, enlarge them if requested, and encode the prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline import demo
from paceline.bench.bench_settings import MIN_PROMPT_TOKENS
from paceline.bench.cost_scale import cost_label, enlarge, parameter_count
from paceline.bench.settings import BenchConfig, CostScale
from paceline.core.drafter import Drafter
from paceline.engine.parallel.ranks import local_device
from paceline.engine.target_loading import LoadedModel, context_length, load_target
from paceline.errors import CapacityError, ConfigError
from paceline.model.loading import load_draft, must_unpack
from paceline.model.sources import packed_source
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.model.weight_formats import packed_formats, with_plain_weights
from paceline.report.prompts import Prompt, encode, load_prompts, shortened
from paceline.util.options import ENGINE


@dataclass(frozen=True, slots=True)
class Models:
    """The loaded models, and their descriptions in reports.

    Attributes:
        target: Target model for which the drafters draft.
        draft: Draft model; None if unused.
        tokenizer: Tokenizer of the target.
        target_label, draft_label: Names of the models.
        weights: Format of the target's weights; "" if the checkpoint's weights are used unchanged.
        transformers_target: Target model of the baselines. If the weights of `target` are packed,
            this model has plain weights, because transformers computes with plain tensors.
    """

    target: LoadedModel
    draft: PreTrainedModel | None
    tokenizer: Any
    target_label: str
    draft_label: str | None
    weights: str
    transformers_target: LoadedModel


@dataclass(frozen=True, slots=True)
class Unit:
    """Prompts to answer in one call.

    Attributes:
        prompts: Prompts of the batch.
        token_ids: Token ids of the prompts.
        cut: Number of prompts that were shortened because they did not fit into the context.
    """

    prompts: tuple[Prompt, ...]
    token_ids: tuple[list[int], ...]
    cut: int


def load_models(
    config: BenchConfig,
    target: LoadedModel | None,
    draft: PreTrainedModel | None,
    tokenizer: Any,
) -> Models:
    """Load the models that were not passed, and enlarge all models as configured.

    Args:
        config: Names of the models, and the sizes to which they are enlarged.
        target: Loaded target model; None loads the model named in `config`.
        draft: Loaded draft model; None loads the model named in `config`, if a method needs it.
        tokenizer: Tokenizer of the target; None loads the target's own tokenizer.
    Raises:
        ConfigError: A method needs a draft model but there is none, or a model cannot be loaded.
        UnsupportedModelError: A model cannot be enlarged.
    """
    options = config.models
    path, wanted = (
        demo.target_of(options.model),
        demo.draft_name(options.model, options.draft_model),
    )
    device = local_device(options.device) if config.lookahead_parallel else options.device
    unpack = options.engine == ENGINE and must_unpack(path, options.dtype, device, options.unpack)
    tokenizer = load_tokenizer(tokenizer, path, unpack)
    model = target or load_target(
        path, options.engine, options.dtype, device, unpack, options.weights
    )
    if not (config.needs_draft() or config.with_draft()):
        draft = None
    elif draft is None and wanted is not None:
        draft = load_draft(wanted, options.dtype, str(model.device))
    if draft is None and config.needs_draft():
        raise ConfigError(
            f"bench: {config.needs_draft()[0]!r} needs a draft model. Pass"
            " \0draft_model=DIRECTORY\0."
        )
    if not isinstance(model, PreTrainedModel):
        label = f"{Path(options.model).name} (llama.cpp)"
        if config.cost_scale is not None:
            raise ConfigError(
                f"\0bench: cost_scale\0: got {config.cost_scale!r} with \0engine='llama.cpp'\0;"
                " expected none. Leave it out."
            )
    else:
        model, label = _scaled(model, options.model, config.cost_scale)
    draft_label = None
    if draft is not None:
        draft, draft_label = _scaled(draft, wanted or "draft", config.draft_cost_scale)
    plain_target, clause = _transformers_target(config, model)
    weights = describe_weights(model, options.model) + clause
    return Models(model, draft, tokenizer, label, draft_label, weights, plain_target)


def make_units(
    config: BenchConfig, models: Models, prompts: Sequence[Prompt] | None = None
) -> list[Unit]:
    """Divide the prompts into batches; by default, use the prompts named in `config`.

    Raises:
        CapacityError: The maximum length of the answers leaves too little room for prompts in the
            models' context.
        ConfigError: A prompt cannot be read or has no tokens.
    """
    if prompts is None:
        selection = config.selection
        prompts = load_prompts(selection.prompts, selection.limit, selection.every)
    loaded = [model for model in (models.target, models.draft) if model is not None]
    context = min(map(context_length, loaded))
    length = config.sampling.max_new_tokens
    room = context - length
    if room < MIN_PROMPT_TOKENS:
        raise CapacityError(
            f"bench: \0max_new_tokens\0 is {length} and the context {context} tokens, which leaves"
            f" {room} for prompts; at least {MIN_PROMPT_TOKENS} are needed. Reduce"
            " \0max_new_tokens\0."
        )
    encoded = [encode(prompt, models.tokenizer) for prompt in prompts]
    parts = [slice(start, start + config.batch) for start in range(0, len(prompts), config.batch)]
    return [
        Unit(
            tuple(prompts[part]),
            tuple(shortened(ids, room) for ids in encoded[part]),
            sum(len(ids) > room for ids in encoded[part]),
        )
        for part in parts
    ]


def feeding_all(make: Callable[[], Drafter]) -> Drafter:
    """Build a drafter without a draft budget, so that all its drafts are verified."""
    drafter = make()
    drafter.budget = False
    return drafter


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Set torch's CPU thread count in the `with` block; None keeps the current count."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_weights(model: LoadedModel, name: str) -> str:
    """Return the format of a model's weights; "" if the checkpoint's weights are used.

    Args:
        model: Loaded model.
        name: Directory, hub id or GGUF file from which the model was loaded.
    """
    if not isinstance(model, PreTrainedModel):
        return ""
    formats, is_gguf = packed_formats(model), packed_source(name) is not None
    if not formats:
        dtype = str(model.dtype).removeprefix("torch.")
        return f"converted to {dtype} (GGUF)" if is_gguf else ""
    return f"packed {', '.join(formats)}{' (GGUF)' if is_gguf else ''}"


def _transformers_target(config: BenchConfig, model: LoadedModel) -> tuple[LoadedModel, str]:
    """Return the baselines' target model, and a short description of its weights."""
    has_baselines = config.skipped().keys() < set(config.baselines)
    if not isinstance(model, PreTrainedModel) or not (has_baselines and packed_formats(model)):
        return model, ""
    return with_plain_weights(model), ", and a second copy in bfloat16 for transformers"


def _scaled(model: PreTrainedModel, name: str, spec: str | None) -> tuple[PreTrainedModel, str]:
    short = Path(name).name or name
    if spec is None:
        return model, f"{short} ({parameter_count(model) / 1e6:.3g} M)"
    scale = CostScale.parse(spec)
    model = enlarge(model, scale.width, scale.layers)
    return model, f"{short}, {cost_label(scale, model)}"
