"""What a bench run works with: the models, enlarged where asked, and the prompts as token ids."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline import demo
from paceline.bench.cost_scale import cost_label, enlarge, parameter_count
from paceline.bench.settings import BenchConfig, CostScale
from paceline.core.drafter import Drafter
from paceline.engine.parallel.ranks import local_device
from paceline.errors import CapacityError, ConfigError
from paceline.model.architecture import Architecture
from paceline.model.loading import load_draft, load_model, load_tokenizer
from paceline.report.prompts import Prompt, encode, load_prompts, shortened

_LEAST_ROOM = 8  # context tokens for a prompt


@dataclass(frozen=True, slots=True)
class Models:
    """Loaded models with the names that reports show; `draft` is None where no method needs one."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: Any
    target_label: str
    draft_label: str | None


@dataclass(frozen=True, slots=True)
class Unit:
    """Prompts that are answered in one call. `cut`: how many were too long for the context, and
    cut.
    """

    prompts: tuple[Prompt, ...]
    token_ids: tuple[list[int], ...]
    cut: int


def load_models(
    config: BenchConfig,
    target: PreTrainedModel | None,
    draft: PreTrainedModel | None,
    tokenizer: Any,
) -> Models:
    """The models of a run, as large as its cost scales say; those that are given are not loaded.

    Raises:
        ConfigError: a method needs a draft model, and none came; or a model that cannot be loaded.
        UnsupportedModelError: a model that cannot be enlarged.
    """
    asked = config.models
    place, wanted = demo.target_of(asked.model), demo.draft_name(asked.model, asked.draft_model)
    tokenizer = load_tokenizer(tokenizer, place)
    device = local_device(asked.device) if config.lookahead_parallel else asked.device
    model = target or load_model(place, asked.dtype, device)
    if not (config.needs_draft() or config.with_draft()):
        draft = None
    elif draft is None and wanted is not None:
        draft = load_draft(wanted, asked.dtype, str(model.device))
    if draft is None and config.needs_draft():
        raise ConfigError(
            f"bench: {config.needs_draft()[0]!r} needs a draft model, and none came; pass"
            " draft_model=DIRECTORY."
        )
    model, label = _scaled(model, asked.model, config.cost_scale)
    if draft is None:
        return Models(model, None, tokenizer, label, None)
    draft, draft_label = _scaled(draft, wanted or "draft", config.draft_cost_scale)
    return Models(model, draft, tokenizer, label, draft_label)


def make_units(
    config: BenchConfig, models: Models, prompts: Sequence[Prompt] | None = None
) -> list[Unit]:
    """The prompts, those of `config` where none are given, in their order and in batches.

    Raises:
        CapacityError: answers of that length leave no room for prompts in the models' context.
        ConfigError: prompts that cannot be read, or have no tokens.
    """
    if prompts is None:
        selection = config.selection
        prompts = load_prompts(selection.prompts, selection.limit, selection.every)
    loaded = [model for model in (models.target, models.draft) if model is not None]
    context = min(Architecture.of(model).context_length for model in loaded)
    length = config.sampling.max_new_tokens
    room = context - length
    if room < _LEAST_ROOM:
        raise CapacityError(
            f"bench: max_new_tokens is {length} and the context {context} tokens, which leaves"
            f" {room} for prompts;"
            f" at least {_LEAST_ROOM} are needed. Reduce max_new_tokens."
        )
    whole = [encode(prompt, models.tokenizer) for prompt in prompts]
    parts = [slice(at, at + config.batch) for at in range(0, len(prompts), config.batch)]
    return [
        Unit(
            tuple(prompts[part]),
            tuple(shortened(ids, room) for ids in whole[part]),
            sum(len(ids) > room for ids in whole[part]),
        )
        for part in parts
    ]


def feeding_all(make: Callable[[], Drafter]) -> Drafter:
    """Make a drafter without a budget: all of its drafts are fed, whatever they cost."""
    drafter = make()
    drafter.budget = False
    return drafter


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """While open, torch uses so many CPU threads; None = as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _scaled(model: PreTrainedModel, name: str, spec: str | None) -> tuple[PreTrainedModel, str]:
    short = Path(name).name or name
    if spec is None:
        return model, f"{short} ({parameter_count(model) / 1e6:.3g} M)"
    scale = CostScale.parse(spec)
    model = enlarge(model, scale.width, scale.layers)
    return model, f"{short}, {cost_label(scale, model)}"
