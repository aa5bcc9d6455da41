"""Run `model.generate` with drafting: the same tokens in fewer forward passes.

    model.generate(**inputs, custom_generate=Strategy("prompt_lookup"))
    generate(model, **inputs, drafter="prompt_lookup", streamer=streamer, stop_strings=["END"],
             tokenizer=tokenizer)

All options for greedy search and sampling work exactly as they do without drafting. This package
calls transformers' logits processors and stopping criteria once per token, in text order. A
processor receives the text before the token. A criterion receives the text up to and including the
token. Custom processors and criteria receive one row at a time. Rows may end at different steps,
but the result is padded to a rectangle, as in transformers.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import (
    LogitsProcessorList,
    StoppingCriteriaList,
)

from paceline.core.drafter import Drafter, require_drafter
from paceline.core.metrics import Stats
from paceline.core.settings import BATCH_INVARIANT, BatchInvariant
from paceline.drafters import create
from paceline.engine.engine import Engine
from paceline.engine.turn import Turn
from paceline.errors import ConfigError
from paceline.integrations.transformers.decoding import Decoding, verify_rows
from paceline.integrations.transformers.generate_arguments import (
    arguments_of_generate,
    stop_criterion,
    with_stop_strings,
)
from paceline.integrations.transformers.refusals import refuse_cache_options, refuse_synced_gpus
from paceline.integrations.transformers.request import GenerateCall
from paceline.model.architecture import Architecture
from paceline.model.loading import load_draft

_Held = tuple[Architecture, torch.device, Engine]


class Strategy:
    """Adds drafting to `model.generate(..., custom_generate=Strategy(...))`.

    A strategy can be reused for any number of models. For each model, it keeps enough KV cache
    memory for the largest call so far. The memory is freed when the model or the strategy is
    deleted. A `streamer` works as usual, and so do `stop_strings` that are passed with a
    `tokenizer`. If a generation configuration contains stop strings, call this module's `generate`
    instead, because transformers does not pass the tokenizer to a strategy.

    Args:
        drafter: "name", "name:key=value,key=value", or a `Drafter`. Default: "auto".
        draft_model: Directory, hub id, GGUF file or loaded model. The draft model proposes its
            most likely tokens.
        batch_invariant: True, False or "auto", as in `LLM`. With batch invariance, the tokens
            depend neither on the drafter nor on the batch, in any dtype. In half precision,
            transformers itself may produce different tokens, because its kernels add numbers in a
            different order.
    Attributes:
        stats: Statistics of the latest call, one entry per row of its result.
    Raises:
        ConfigError: The drafter or an option is unknown, a required draft model is missing, or the
            drafter does not use a draft model. A call also raises this error if batch invariance
            was requested but is not possible.
    """

    def __init__(
        self,
        drafter: str | Drafter = "auto",
        draft_model: str | PreTrainedModel | None = None,
        batch_invariant: BatchInvariant = BATCH_INVARIANT,
    ) -> None:
        if isinstance(drafter, str):
            drafter = create(
                drafter, draft_model=None if draft_model is None else load_draft(draft_model)
            )
        elif draft_model is not None:
            raise ConfigError(
                f"draft_model: the drafter {drafter.name!r} is already built. Pass the drafter's"
                " name, or no draft_model."
            )
        require_drafter("Strategy", drafter)
        self.drafter = drafter
        self.batch_invariant = batch_invariant
        self.stats: list[Stats] = []
        self._engines: weakref.WeakKeyDictionary[PreTrainedModel, _Held] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = Turn(list)
        self._busy = False

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        stop_strings: str | list[str] | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode the rows, using arguments that transformers has prepared.

        Args:
            model: Model whose `generate` method was called.
            input_ids: Token ids, padded on the left, [batch, width].
            logits_processor: Logits processors.
            stopping_criteria: Stopping criteria.
            generation_config: Generation configuration.
            stop_strings: Strings that end a row. transformers passes these strings only because
                this parameter exists.
            model_kwargs: Arguments for the model's `forward`. They may include `streamer`
                (default: the one passed to `model.generate`) and `synced_gpus`, which is rejected.
        Returns:
            Token ids [batch, total]; with `return_dict_in_generate`, a
            `GenerateDecoderOnlyOutput`.
        Raises:
            ConfigError: An option is not supported, an `assistant_model` was passed, or stop
                strings were passed without a tokenizer.
            UnsupportedModelError: Lossless verification is not possible with this model.
            CapacityError: The call needs more tokens than the model's context allows.
        """
        given = arguments_of_generate(self)
        streamer = model_kwargs.pop("streamer", None) or given.get("streamer")
        try:
            refuse_synced_gpus(model, model_kwargs.pop("synced_gpus", None))
            if given.get("assistant_model") is not None:
                raise ConfigError(
                    "assistant_model: a Strategy takes no assistant. Pass draft_model=... to the"
                    " Strategy."
                )
            criteria = stopping_criteria
            if stop_strings is not None:
                added = stop_criterion(stop_strings, given.get("tokenizer"))
                criteria = StoppingCriteriaList([*criteria, added])
            prepared = logits_processor, criteria, generation_config
            return self._decode(model, input_ids, streamer, *prepared, **model_kwargs)
        finally:
            if streamer is not None:
                streamer.end()

    def _decode(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        streamer: Any,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **inputs: Any,
    ) -> Any:
        with self._lock:  # threads take turns; only a nested call finds the strategy busy
            if self._busy:
                raise ConfigError(
                    "The Strategy was called from inside its own generate call. Use a second"
                    " Strategy there."
                )
            self._busy = True
            try:
                engine = self._engine(model)
                request = GenerateCall.of(
                    model,
                    input_ids,
                    logits_processor,
                    stopping_criteria,
                    generation_config,
                    inputs,
                    engine.model.context_length,
                )
                decoding = Decoding(engine, request, streamer)
                result = decoding.run()
                self.stats = decoding.stats
                return result
            finally:
                self._busy = False

    def _engine(self, model: PreTrainedModel) -> Engine:
        """Return the engine for a model; reuse it until the model changes."""
        facts = Architecture.from_model(model)
        held = self._engines.get(model)
        if held is None or held[:2] != (facts, model.device):
            # a strong reference would keep the key alive
            unowned = cast(PreTrainedModel, weakref.proxy(model))
            # A head that the drafter loads is built with random weights first.
            with torch.random.fork_rng(devices=[]):
                engine = Engine(
                    unowned,
                    self.drafter,
                    max_batch=None,
                    batch_invariant=self.batch_invariant,
                    verify=verify_rows,
                )
            held = self._engines[model] = (facts, model.device, engine)
        return held[2]


def generate(
    model: PreTrainedModel,
    inputs: Tensor | None = None,
    *,
    drafter: str | Drafter | Strategy = "auto",
    draft_model: str | PreTrainedModel | None = None,
    streamer: Any = None,
    stop_strings: str | list[str] | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> Any:
    """Run `model.generate(inputs, ...)` with drafting.

    Unlike `custom_generate`, this function fully supports streamers and stop strings.

    Args:
        model: Transformers model.
        inputs: Token ids of the prompts.
        drafter: "name", "name:key=value,key=value", a `Drafter`, or a `Strategy` to reuse.
            Default: "auto".
        draft_model: Draft model: directory, hub id, GGUF file or loaded model.
        streamer: Streamer that receives the prompt, followed by the tokens as they are accepted.
            Its `end` method is called even after an error.
        stop_strings: Strings that end a row, in addition to those in a `generation_config`; they
            require `tokenizer`.
        tokenizer: Tokenizer for the stop strings.
        options: All other arguments of `model.generate`.
    Returns:
        The result of `model.generate`.
    Raises:
        ConfigError: The drafter or an option is unknown or not supported, a required draft model is
            missing, or `assistant_model`, `custom_generate` or `synced_gpus` was passed.
    """
    _require_model(model)
    try:
        strategy = _strategy_of(drafter, draft_model)
        _refuse_replaced(options)
        refuse_synced_gpus(model, options.pop("synced_gpus", None))
        refuse_cache_options(model, options)
        options = with_stop_strings(model, stop_strings, tokenizer, options)

        def decode(model: PreTrainedModel, input_ids: Tensor, **prepared: Any) -> Any:
            return strategy._decode(model, input_ids, **{**prepared, "streamer": streamer})

        # transformers passes the prompt to the streamer
        return model.generate(inputs, streamer=streamer, **{**options, "custom_generate": decode})
    finally:
        if streamer is not None:
            streamer.end()


def _require_model(model: object) -> None:
    if not hasattr(model, "generation_config"):
        raise ConfigError(
            f"model: got a {type(model).__name__}; expected a loaded transformers model that"
            " generates."
        )


def _strategy_of(
    drafter: str | Drafter | Strategy, draft_model: str | PreTrainedModel | None
) -> Strategy:
    if not isinstance(drafter, Strategy):
        return Strategy(drafter, draft_model)
    if draft_model is not None:
        raise ConfigError(
            "draft_model: the Strategy is already built. Pass draft_model to the Strategy."
        )
    return drafter


def _refuse_replaced(options: Mapping[str, Any]) -> None:
    """Reject options for which paceline's `generate` has a different name."""
    for name, replacement in (("custom_generate", "drafter"), ("assistant_model", "draft_model")):
        if options.get(name) is not None:
            raise ConfigError(
                f"{name}: not supported in paceline's generate. Pass {replacement}=... instead."
            )
