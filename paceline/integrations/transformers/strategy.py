"""`model.generate` with drafts: the same tokens, sampled or not, in fewer forwards.

model.generate(**inputs, custom_generate=Strategy("prompt_lookup"))
generate(model, **inputs, drafter="prompt_lookup", streamer=streamer, stop_strings=["END"],
tokenizer=tokenizer)

Every option of `generate` that concerns greedy search and sampling works as it does without drafts,
because transformers prepares the processors and criteria and each is asked for every token, in
order, on its true prefix. Custom ones are called with one row at a time. In a batch the rows end at
different steps here; the result is the same rectangle.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import (
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
)

from paceline.core.drafter import Drafter, require_drafter
from paceline.core.metrics import Stats
from paceline.drafters import create
from paceline.engine.engine import Engine
from paceline.engine.turn import Turn
from paceline.errors import ConfigError
from paceline.integrations.transformers.decoding import Decoding, verify_rows
from paceline.integrations.transformers.request import GenerateCall, refuse_synced_gpus
from paceline.model.architecture import Architecture
from paceline.model.loading import load_draft
from paceline.util.options import BATCH_INVARIANT, BatchInvariant

_Held = tuple[Architecture, torch.device, Engine]


class Strategy:
    """Decodes with drafts inside `model.generate(..., custom_generate=Strategy(...))`. Reusable,
    for any number of models; what a model's largest call needed of cache memory is kept until the
    model or the Strategy goes.

    A `streamer` works as it does without, and so do `stop_strings` with their `tokenizer` given to
    `model.generate`. Stop strings set in a generation configuration transformers refuses itself, as
    it keeps no tokenizer for a callable: for them call `generate` of this module.

    Args:
        drafter: "name", "name:key=value,key=value", or a `Drafter`; default "auto", as in `LLM`.
        draft_model: directory, hub id, GGUF file or loaded model, for the drafters that need one.
            It proposes its most likely tokens.
        batch_invariant: True, False or "auto", as in `LLM`: the same tokens under every drafter, in
            any batch and dtype. transformers' own text in half precision may still be another: its
            kernels sum in another order.
    Attributes:
        stats: counts of the latest call, one per row of its result.
    Raises:
        ConfigError: an unknown drafter or option, or a draft model that is missing or not wanted;
            from a call, batch invariance that was asked for and cannot be.
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
                f"draft_model: got one beside a finished drafter, {drafter.name!r}; expected none."
                " Pass the drafter's name, or"
                " no draft_model."
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
        synced_gpus: bool | None = None,
        streamer: Any = None,
        stop_strings: str | list[str] | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """The decoding method transformers calls once it has prepared everything.

        Args:
            input_ids: [batch, width], padded on the left.
            streamer: gets the tokens and is ended; default the one that `model.generate` was given.
            stop_strings: end a row. transformers hands them on as they are because they have a name
                here.
        Returns:
            token ids [batch, total], or a `GenerateDecoderOnlyOutput` with
            `return_dict_in_generate`.
        Raises:
            ConfigError: an option that cannot be honoured, an `assistant_model`, stop strings
                without a tokenizer.
            UnsupportedModelError: a model that cannot be verified losslessly.
            CapacityError: more tokens than the model's context.
        """
        given = _given_to_generate(self)
        streamer = streamer or given.get("streamer")
        try:
            refuse_synced_gpus(model, synced_gpus)
            if given.get("assistant_model") is not None:
                raise ConfigError(
                    "assistant_model: got one beside a Strategy; expected None. Pass"
                    " draft_model=... to the Strategy."
                )
            if stop_strings is not None:
                stopping_criteria = StoppingCriteriaList(
                    [*stopping_criteria, _stop_criterion(stop_strings, given.get("tokenizer"))]
                )
            return self._decode(
                model,
                input_ids,
                streamer,
                logits_processor,
                stopping_criteria,
                generation_config,
                **model_kwargs,
            )
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
        with self._lock:  # threads take turns; only the thread that is decoding can find it busy
            if self._busy:
                raise ConfigError(
                    "this Strategy was called from inside its own generate; use another one there."
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
        """The engine of a model, kept as long as the model lives and is not changed."""
        facts = Architecture.of(model)
        held = self._engines.get(model)
        if held is None or held[:2] != (facts, model.device):
            unowned = cast(
                PreTrainedModel, weakref.proxy(model)
            )  # a strong reference would keep its own key alive
            engine = Engine(
                unowned,
                self.drafter,
                max_batch=None,
                batch_invariant=self.batch_invariant,
                verify=verify_rows,
            )
            held = self._engines[model] = (facts, model.device, engine)
        return held[2]


def _given_to_generate(strategy: Strategy) -> dict[str, Any]:
    """The arguments of the `model.generate` that calls a strategy. transformers passes no streamer,
    assistant or tokenizer on to a callable: one that reads the stream would wait for ever.

    The tokenizer it has removed by now; what is around `generate` (`torch.no_grad`, PEFT) still has
    all that it handed on.
    """
    given: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        code = (
            frame.f_code
        )  # of other frames nothing is read: what is keeps their variables alive until they return
        if (
            not given
            and code.co_name == "generate"
            and frame.f_locals.get("custom_generate") is strategy
        ):
            given = dict(frame.f_locals)
        elif given:
            around = frame.f_locals.get("kwargs") if "kwargs" in code.co_varnames else None
            if not isinstance(around, dict) or around.get("custom_generate") is not strategy:
                break
            if "tokenizer" in around:
                return given | {"tokenizer": around["tokenizer"]}
        frame = frame.f_back
    return given


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
    """`model.generate(inputs, ...)` with drafts, and with what transformers drops on the way to a
    `custom_generate`.

    Args:
        drafter: "name", "name:key=value,key=value", a `Drafter`, or a `Strategy` to keep between
            calls; default "auto".
        draft_model: as in `Strategy`.
        streamer: gets the prompt, then the tokens as they are accepted; its `end` is called also
            when an error ends the call.
        stop_strings: end a row; also those of a `generation_config` or of the model's. They need
            `tokenizer`.
        options: everything else that `model.generate` takes.
    Returns:
        what `model.generate` returns.
    Raises:
        as `Strategy`, and ConfigError: stop strings without a tokenizer, `assistant_model`,
        `custom_generate`, `synced_gpus`.
    """
    if not hasattr(model, "generation_config"):
        raise ConfigError(
            f"model: got a {type(model).__name__}; expected a loaded transformers model that"
            " generates."
        )
    try:
        strategy = drafter if isinstance(drafter, Strategy) else Strategy(drafter, draft_model)
        if isinstance(drafter, Strategy) and draft_model is not None:
            raise ConfigError(
                "draft_model: got one beside a finished Strategy; expected none. Give it to the"
                " Strategy."
            )
        for name, instead in (("custom_generate", "drafter"), ("assistant_model", "draft_model")):
            if options.get(name) is not None:
                raise ConfigError(
                    f"{name}: got one; expected None in paceline's generate. Pass {instead}=..."
                    " instead."
                )
        refuse_synced_gpus(model, options.pop("synced_gpus", None))
        options = _with_stop_strings(model, stop_strings, tokenizer, options)

        def decode(model: PreTrainedModel, input_ids: Tensor, **prepared: Any) -> Any:
            return strategy._decode(model, input_ids, **{**prepared, "streamer": streamer})

        # transformers gives the prompt to the streamer
        return model.generate(inputs, streamer=streamer, **{**options, "custom_generate": decode})
    finally:
        if streamer is not None:
            streamer.end()


def _stop_criterion(stop: str | list[str], tokenizer: Any) -> StopStringCriteria:
    if tokenizer is None:
        raise ConfigError(
            "stop_strings: got no tokenizer, which alone knows how tokens spell them; expected"
            " both. Pass tokenizer=..., to the"
            " generate of paceline.integrations.transformers if the model's own does not hand it"
            " on."
        )
    return StopStringCriteria(stop_strings=stop, tokenizer=tokenizer)


def _with_stop_strings(
    model: PreTrainedModel, stop: Any, tokenizer: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """The options with stop strings, wherever they were set, as a stopping criterion; nothing of
    the caller's is changed.
    """
    config = options.get("generation_config")
    for source in (config, model.generation_config):
        stop = stop if stop is not None else getattr(source, "stop_strings", None)
    if stop is None:
        return options
    criteria = [*(options.get("stopping_criteria") or ()), _stop_criterion(stop, tokenizer)]
    options = {**options, "stopping_criteria": StoppingCriteriaList(criteria)}
    if config is not None:
        options["generation_config"] = copy.deepcopy(config)
        options["generation_config"].stop_strings = None
    if model.generation_config.stop_strings is not None:
        options["stop_strings"] = None
    return options
