"""Validate the arguments of a transformers `generate` call before decoding."""

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
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from paceline.errors import CapacityError, ConfigError
from paceline.integrations.transformers.refusals import (
    refuse_batch,
    refuse_ids,
    refuse_inputs,
    refuse_modes,
    refuse_positions,
    refuse_virtual_tokens,
)
from paceline.model.forward_arguments import GENERATE_CACHE, given_cache

_REPLACEABLE_LAYERS = (hf_caches.DynamicLayer, hf_caches.DynamicSlidingWindowLayer)


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """Validated arguments of a call to transformers' `generate`.

    Attributes:
        input_ids: Token ids with padding, [batch, width].
        padding: Number of leading padding tokens in each row.
        processors: Logits processors.
        eos_token_ids: Ids of the tokens that end a row.
        criteria: Stopping criteria other than lengths and end-of-sequence tokens.
        max_length: Length at which a row ends, including padding.
        pad_token_id: Token that fills rows after their end; None if all rows end together.
        sampled: Whether tokens are sampled; otherwise the most likely token is chosen.
        keep_scores: Whether to collect the processed scores.
        keep_logits: Whether to collect the raw logits.
        as_dict: Whether to return a `GenerateDecoderOnlyOutput`.
        past: Number of `input_ids` columns whose keys and values are already in `cache`.
        cache: KV cache to which the call adds its keys and values at the end; None if the caller
            does not receive a cache.
        media: Arguments for the model's own prefill; None if the prompts contain text only.
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
    media: dict[str, Any] | None

    @property
    def batch(self) -> int:
        """Return the number of rows in the call's batch."""
        return int(self.input_ids.shape[0])

    @property
    def width(self) -> int:
        """Return the number of prompt tokens per row, including padding."""
        return int(self.input_ids.shape[1])

    @property
    def plain(self) -> bool:
        """Return whether each token is simply the argmax of the raw logits.

        All other calls sample, have logits processors, or return logits or scores.
        """
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
        """Validate the arguments that transformers' `generate` has prepared.

        Args:
            model: Model that the call runs.
            input_ids: Token ids with padding, [batch, width].
            processors: Logits processors.
            criteria: Stopping criteria.
            config: Generation configuration.
            inputs: Arguments for the model's `forward`.
            context_length: Maximum number of tokens that the model supports.
        Raises:
            ConfigError: An option is not supported.
            CapacityError: The call needs more tokens than the model's context allows.
        """
        refuse_modes(model, config)
        refuse_virtual_tokens(model)
        has_media = refuse_inputs(model, input_ids, inputs)
        mask, cache = inputs.get("attention_mask"), given_cache(inputs)
        padding = _left_padding(input_ids, mask)
        past = _columns_held(cache, input_ids, mask, config)
        if has_media and past:
            raise ConfigError(
                f"{GENERATE_CACHE}: got {past} tokens together with images, videos or audio;"
                " expected an empty cache. Leave it out."
            )
        if not has_media:
            refuse_positions(input_ids, padding, inputs.get("position_ids"))
        refuse_ids(model, input_ids, padding)
        max_length = _max_length(input_ids, padding, criteria, config, context_length)
        handled = MaxLengthCriteria, EosTokenCriteria
        others = [criterion for criterion in criteria if type(criterion) not in handled]
        pad = config._pad_token_tensor
        if len(input_ids) > 1:
            refuse_batch(processors, criteria, others, pad)
        as_dict = bool(config.return_dict_in_generate)
        returns_cache = as_dict or past > 0 or getattr(cache, "_is_user_defined", False)
        return GenerateCall(
            input_ids=input_ids,
            padding=padding,
            processors=processors,
            eos_token_ids=_eos_token_ids(criteria),
            criteria=StoppingCriteriaList(others),
            max_length=max_length,
            pad_token_id=None if pad is None else int(pad),
            sampled=bool(config.do_sample),
            keep_scores=as_dict and bool(config.output_scores),
            keep_logits=as_dict and bool(config.output_logits),
            as_dict=as_dict,
            past=past,
            cache=cache if returns_cache else None,
            media=inputs if has_media else None,
        )


def _eos_token_ids(criteria: StoppingCriteriaList) -> frozenset[int]:
    return frozenset(
        token
        for criterion in criteria
        if type(criterion) is EosTokenCriteria
        for token in criterion.eos_token_id.tolist()
    )


def _max_length(
    input_ids: Tensor,
    padding: list[int],
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    context_length: int,
) -> int:
    lengths = [
        criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria
    ] or [config.max_length]
    longest = max(min(lengths), input_ids.shape[1] + 1)
    needed = longest - min(padding)
    if needed > context_length:
        raise CapacityError(
            f"The call needs up to {needed} tokens, prompt included, but the model's context is"
            f" {context_length}. Lower max_new_tokens or max_length, or shorten the prompt."
        )
    return int(longest)


def _left_padding(input_ids: Tensor, mask: Tensor | None) -> list[int]:
    """Return the number of leading padding tokens per row; 0 if there is no mask."""
    batch, width = input_ids.shape
    if mask is None:
        return [0] * batch
    if mask.dim() != 2 or mask.shape[1] != width:
        raise ConfigError(
            f"attention_mask: got shape {tuple(mask.shape)}; expected {tuple(input_ids.shape)},"
            " the shape of input_ids. Pass the whole text so far as input_ids, even if"
            f" {GENERATE_CACHE} holds part of it."
        )
    is_token = mask.bool()
    counts = is_token.sum(-1)
    expected = torch.arange(width, device=mask.device) >= (width - counts)[:, None]
    for row in range(batch):
        if counts[row] == 0:
            raise ConfigError(
                f"row {row} of attention_mask holds only zeros. Leave empty prompts out."
            )
        if not torch.equal(is_token[row], expected[row]):
            raise ConfigError(
                f"row {row} of attention_mask: got zeros after its first 1; expected padding on the"
                " left only. Tokenize with padding_side='left'."
            )
    return [int(count) for count in width - counts]


def _columns_held(
    cache: Any, input_ids: Tensor, mask: Tensor | None, config: GenerationConfig
) -> int:
    """Return how many columns of `input_ids` are in a cache; reject unusable caches."""
    if cache is None:
        return 0
    type_name = type(cache).__name__
    if not isinstance(cache, DynamicCache) or getattr(cache, "offloading", False):
        raise ConfigError(
            f"{GENERATE_CACHE}: got a {type_name}; expected a DynamicCache that is not offloaded."
            " Pass DynamicCache()."
        )
    # transformers knows no length if all layers are recurrent, as in Mamba.
    is_recurrent = cache.layers and not any(
        isinstance(layer, hf_caches.CacheLayerMixin) for layer in cache.layers
    )
    past = 0 if is_recurrent else int(cache.get_seq_length())
    if past == 0:
        return 0
    batch, width = input_ids.shape
    num_mask_columns = width if mask is not None else getattr(config, "_mask_length", width)
    if past >= width or num_mask_columns != width:
        raise ConfigError(
            f"{GENERATE_CACHE}: got {past} tokens for input_ids of {width}; expected fewer, as"
            " input_ids are the whole text so far. Pass the whole text, at least one token longer"
            " than the cache."
        )
    for layer in cache.layers:
        if getattr(layer, "keys", None) is None:
            continue  # this layer shares the states of another layer
        if type(layer) not in _REPLACEABLE_LAYERS:
            raise ConfigError(
                f"{GENERATE_CACHE}: got a {type(layer).__name__}; expected plain dynamic layers."
                " Start with DynamicCache()."
            )
        if layer.keys.shape[0] != batch:
            raise ConfigError(
                f"{GENERATE_CACHE}: got {layer.keys.shape[0]} rows; expected {batch}, as in"
                " input_ids. Pass the cache of these input_ids."
            )
    return past
