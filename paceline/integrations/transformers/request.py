"""What one call of transformers' `generate` asks for, checked before any work starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers import cache_utils as hf_caches
from transformers.generation import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMode,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation import utils as hf_utils

from paceline.errors import CapacityError, ConfigError
from paceline.model.forward_arguments import GENERATE_CACHE

_USED_INPUTS = {
    "attention_mask",
    "position_ids",
    GENERATE_CACHE,
    "use_cache",
    "logits_to_keep",
    "return_dict",
}
_REPLACEABLE_LAYERS = (hf_caches.DynamicLayer, hf_caches.DynamicSlidingWindowLayer)


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A checked call.

    Attributes:
        input_ids: [batch, width] with the padding.
        padding: per row, how many of the first tokens are padding.
        eos_token_ids: tokens that end a row.
        criteria: the stopping criteria that are neither a length nor end-of-sequence tokens.
        max_length: the length at which a row ends, padding included.
        pad_token_id: what finished rows are filled up with; None where all rows end together.
        sampled: tokens are drawn, not the most likely ones.
        keep_scores, keep_logits: collect them.
        as_dict: the result is a `GenerateDecoderOnlyOutput`.
        past: columns of `input_ids` that `cache` holds already.
        cache: to be brought up to date at the end; None where nobody will see it.
    """

    input_ids: Tensor
    padding: list[int]
    processors: LogitsProcessorList
    eos_token_ids: frozenset[int]
    criteria: StoppingCriteriaList
    max_length: int
    pad_token_id: int | None
    sampled: bool
    keep_scores: bool
    keep_logits: bool
    as_dict: bool
    past: int
    cache: DynamicCache | None

    @property
    def batch(self) -> int:
        """Rows."""
        return int(self.input_ids.shape[0])

    @property
    def width(self) -> int:
        """Tokens per row of the prompt, padding included."""
        return int(self.input_ids.shape[1])

    @property
    def plain(self) -> bool:
        """The next token is the most likely one by the raw logits, and nobody wants to see them."""
        return not (self.sampled or self.keep_scores or self.keep_logits or self.processors)

    @staticmethod
    def of(
        model: PreTrainedModel,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        inputs: dict[str, Any],
        context_length: int,
    ) -> GenerateCall:
        """Check what `generate` prepared.

        Args:
            inputs: what would have gone to the model's forward.
        Raises:
            ConfigError: something that cannot be done here; CapacityError: more tokens than the
                model's context.
        """
        _refuse_modes(model, config)
        _refuse_virtual_tokens(model)
        _refuse_inputs(input_ids, inputs)
        mask, cache = inputs.get("attention_mask"), inputs.get(GENERATE_CACHE)
        padding = _left_padding(input_ids, mask)
        past = _columns_held(cache, input_ids, mask, config)
        _refuse_positions(input_ids, padding, inputs.get("position_ids"))
        _refuse_ids(model, input_ids, padding)
        max_length = _max_length(input_ids, padding, criteria, config, context_length)
        eos = [
            token
            for one in criteria
            if type(one) is EosTokenCriteria
            for token in one.eos_token_id.tolist()
        ]
        others = [one for one in criteria if type(one) not in (MaxLengthCriteria, EosTokenCriteria)]
        pad = config._pad_token_tensor
        if len(input_ids) > 1:
            _refuse_batch(processors, criteria, others, pad)
        as_dict = bool(config.return_dict_in_generate)
        seen = as_dict or past > 0 or getattr(cache, "_is_user_defined", False)
        return GenerateCall(
            input_ids=input_ids,
            padding=padding,
            processors=processors,
            eos_token_ids=frozenset(eos),
            criteria=StoppingCriteriaList(others),
            max_length=max_length,
            pad_token_id=None if pad is None else int(pad),
            sampled=bool(config.do_sample),
            keep_scores=as_dict and bool(config.output_scores),
            keep_logits=as_dict and bool(config.output_logits),
            as_dict=as_dict,
            past=past,
            cache=cache if seen else None,
        )


def _max_length(
    input_ids: Tensor,
    padding: list[int],
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    context_length: int,
) -> int:
    lengths = [one.max_length for one in criteria if type(one) is MaxLengthCriteria] or [
        config.max_length
    ]
    longest = max(min(lengths), input_ids.shape[1] + 1)
    needed = longest - min(padding)
    if needed > context_length:
        raise CapacityError(
            f"got an answer of up to {needed} tokens, prompt included; the model's context is"
            f" {context_length}. Lower"
            " max_new_tokens or max_length, or shorten the prompt."
        )
    return int(longest)


def refuse_synced_gpus(model: PreTrainedModel, asked: bool | None) -> None:
    """Data-parallel peers that must run the same number of forwards cannot each accept their own
    drafts.

    Raises:
        ConfigError: `synced_gpus` was asked for, or transformers would switch it on by itself.
    """
    sharded = (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )
    if asked is None and sharded:
        asked = hf_utils.is_deepspeed_zero3_enabled() or hf_utils.is_fsdp_managed_module(model)
    if asked:
        raise ConfigError(
            "synced_gpus: got True (FSDP or DeepSpeed ZeRO-3), which needs the same number of"
            " forwards on every GPU, and drafts"
            " make them differ; expected False. Gather the weights first, or use model.generate"
            " without custom_generate."
        )


def _refuse_modes(model: PreTrainedModel, config: GenerationConfig) -> None:
    mode = config.get_generation_mode()
    beams = config.num_beams or 1
    if beams > 1:
        raise ConfigError(
            f"num_beams: got {beams}; expected 1. Leave it out, or use model.generate without"
            " custom_generate."
        )
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ConfigError(
            f"got options of {mode.value}; expected those of greedy search or sampling. Drop"
            " penalty_alpha, dola_layers,"
            " constraints, prompt_lookup_num_tokens and assistant options: the drafter is named by"
            " drafter=..."
        )
    if config.use_cache is False:
        raise ConfigError(
            "use_cache: got False; expected True: verified tokens are kept in a key/value cache."
            " Leave it out."
        )
    if config.cache_implementation not in (None, "dynamic"):
        raise ConfigError(
            f"cache_implementation: got {config.cache_implementation!r}; expected None or"
            " 'dynamic': the tokens of a rejected"
            " draft must be taken out again. Leave it out."
        )
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise ConfigError(
                f"{name}: got True; expected False: several tokens share a forward. Call the model"
                " instead."
            )
    if model.training:
        raise ConfigError(
            "got a model in training mode, where dropout changes every forward; expected none."
            " Call model.eval() first."
        )


def _refuse_virtual_tokens(model: PreTrainedModel) -> None:
    # While it generates, PEFT puts its own method here; that of prompt and prefix tuning adds
    # embeddings or a cache.
    adapter = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    config = getattr(adapter, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ConfigError(
            f"got a {type(config).__name__}, an adapter that puts virtual tokens before the text;"
            " expected one in the weights, as"
            " LoRA. Use model.generate without custom_generate."
        )


def _refuse_inputs(input_ids: Tensor, inputs: dict[str, Any]) -> None:
    if inputs.get("inputs_embeds") is not None or input_ids.shape[1] == 0:
        raise ConfigError(
            "got inputs_embeds or an empty prompt; expected token ids, since drafts are made from"
            " them."
            " Pass input_ids."
        )
    other = sorted(
        name for name, value in inputs.items() if name not in _USED_INPUTS and value is not None
    )
    if other:
        raise ConfigError(
            f"got {', '.join(other)}; expected, beside the options,"
            f" {', '.join(sorted(_USED_INPUTS))}. This is for text models;"
            " use model.generate without custom_generate for other inputs."
        )


def _refuse_ids(model: PreTrainedModel, input_ids: Tensor, padding: list[int]) -> None:
    vocab_size = model.get_input_embeddings().num_embeddings
    for row, (ids, first) in enumerate(zip(input_ids, padding, strict=True)):
        low, high = int(ids[first:].min()), int(ids[first:].max())
        if low < 0 or high >= vocab_size:
            raise ConfigError(
                f"input_ids: got ids from {low} to {high} in row {row}; expected 0 to"
                f" {vocab_size - 1}."
            )


def _left_padding(input_ids: Tensor, mask: Tensor | None) -> list[int]:
    """How many leading tokens of each row are padding; no mask means none."""
    batch, width = input_ids.shape
    if mask is None:
        return [0] * batch
    if mask.dim() != 2 or mask.shape[1] != width:
        raise ConfigError(
            f"attention_mask: got shape {tuple(mask.shape)}; expected {tuple(input_ids.shape)},"
            " that of input_ids. Pass"
            f" the whole text so far as input_ids, also when {GENERATE_CACHE} holds part of it."
        )
    real = mask.bool()
    counts = real.sum(-1)
    expected = torch.arange(width, device=mask.device) >= (width - counts)[:, None]
    for row in range(batch):
        if counts[row] == 0:
            raise ConfigError(
                f"row {row} of attention_mask: got all zeros; expected a token at least. Leave"
                " empty prompts out."
            )
        if not torch.equal(real[row], expected[row]):
            raise ConfigError(
                f"row {row} of attention_mask: got zeros after its first one; expected padding on"
                " the left only. Tokenize with"
                " padding_side='left'."
            )
    return [int(count) for count in width - counts]


def _refuse_positions(input_ids: Tensor, padding: list[int], given: Tensor | None) -> None:
    if given is None:
        return
    batch, width = input_ids.shape
    columns = torch.arange(width, device=given.device).expand(batch, width)
    expected = columns - torch.tensor(padding, device=given.device)[:, None]
    real = expected >= 0
    if (
        given.dim() != 2
        or given.shape[1] != width
        or not torch.equal(given.expand(batch, width)[real], expected[real])
    ):
        raise ConfigError(
            "position_ids: got others than the tokens of each row counted from 0; expected those."
            " Leave them out."
        )


def _refuse_batch(
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    others: list[Any],
    pad: Tensor | None,
) -> None:
    if any(type(one) is UnbatchedClassifierFreeGuidanceLogitsProcessor for one in processors):
        raise ConfigError(
            "guidance_scale: got several prompts; expected one, whose guidance has its own cache."
            " Pass one at a time."
        )
    has_eos = any(
        hasattr(one, "eos_token_id") for one in criteria
    )  # the test transformers makes before it pads
    if (others or has_eos) and (pad is None or not has_eos):
        raise ConfigError(
            "got a batch whose rows can end at different steps, and no end-of-sequence or padding"
            " token to fill the finished"
            " ones; expected both. Set eos_token_id and pad_token_id, or pass one prompt at a time."
        )


def _columns_held(
    cache: Any, input_ids: Tensor, mask: Tensor | None, config: GenerationConfig
) -> int:
    """Columns of `input_ids` already in the cache that came in or was prepared; refuses caches
    that cannot be continued.
    """
    if cache is None:
        return 0
    kind = type(cache).__name__
    if not isinstance(cache, DynamicCache) or getattr(cache, "offloading", False):
        raise ConfigError(
            f"{GENERATE_CACHE}: got a {kind}; expected a DynamicCache that is not offloaded. Pass"
            " DynamicCache()."
        )
    past = int(cache.get_seq_length())
    if past == 0:
        return 0
    batch, width = input_ids.shape
    known = width if mask is not None else getattr(config, "_mask_length", width)
    if past >= width or known != width:
        raise ConfigError(
            f"{GENERATE_CACHE}: got {past} tokens for input_ids of {width}; expected fewer, as"
            " input_ids are the whole text so"
            " far. Pass the whole text, at least one token longer than the cache."
        )
    for layer in cache.layers:
        if getattr(layer, "keys", None) is None:
            continue  # a layer that reads the states of another one
        if type(layer) not in _REPLACEABLE_LAYERS:
            raise ConfigError(
                f"{GENERATE_CACHE}: got a {type(layer).__name__}; expected plain dynamic layers."
                " Start with DynamicCache()."
            )
        if layer.keys.shape[0] != batch:
            raise ConfigError(
                f"{GENERATE_CACHE}: got {layer.keys.shape[0]} rows; expected {batch}, as in"
                " input_ids. Pass their own cache."
            )
    return past
