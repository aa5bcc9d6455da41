"""Reject `generate` arguments that drafting does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import (
    GenerationConfig,
    GenerationMode,
    LogitsProcessorList,
    StoppingCriteriaList,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation import utils as hf_utils

from paceline.errors import ConfigError
from paceline.model.forward_arguments import CACHE_NAMES, forward_parameters
from paceline.model.media_prefill import takes_media

_USED_INPUTS = {
    "attention_mask",
    "position_ids",
    *CACHE_NAMES,
    "use_cache",
    "logits_to_keep",
    "return_dict",
}


def refuse_synced_gpus(model: PreTrainedModel, synced_gpus: bool | None) -> None:
    """Reject calls in which all processes must run the same number of forward passes.

    With drafting, the number of forward passes differs between processes.

    Raises:
        ConfigError: `synced_gpus` was requested, or transformers would enable it.
    """
    sharded = (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )
    if synced_gpus is None and sharded:
        synced_gpus = hf_utils.is_deepspeed_zero3_enabled() or hf_utils.is_fsdp_managed_module(
            model
        )
    if synced_gpus:
        raise ConfigError(
            "synced_gpus: FSDP and DeepSpeed ZeRO-3 need the same number of forward passes on"
            " every GPU, but drafts make them differ. Gather the weights first, or use"
            " model.generate without custom_generate."
        )


def refuse_modes(model: PreTrainedModel, config: GenerationConfig) -> None:
    """Reject generation modes and outputs that drafting does not support.

    Raises:
        ConfigError: An unsupported option was passed; the message names it.
    """
    mode = config.get_generation_mode()
    beams = config.num_beams or 1
    if beams > 1:
        raise ConfigError(
            f"num_beams: got {beams}; expected 1. Leave it out, or use model.generate without"
            " custom_generate."
        )
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ConfigError(
            f"The options select {mode.value}; only greedy search and sampling are supported. Drop"
            " penalty_alpha, dola_layers, constraints, prompt_lookup_num_tokens and assistant"
            " options, and pass drafter=..."
        )
    if config.use_cache is False:
        raise ConfigError(
            "use_cache: got False; expected True, as drafts need a KV cache. Leave it out."
        )
    _refuse_cache(config.cache_implementation)
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise ConfigError(
                f"{name}: got True; expected False, as several tokens share a forward pass. Call"
                " the model instead."
            )
    if model.training:
        raise ConfigError(
            "The model is in training mode, where dropout changes every forward pass. Call"
            " model.eval() first."
        )


def refuse_cache_options(model: PreTrainedModel, options: Mapping[str, Any]) -> None:
    """Reject options that select a cache from which tokens cannot be removed.

    Call this function before transformers creates the cache, because creating the cache can fail.
    An offloaded cache needs a GPU, and a quantised cache needs an additional package.

    Args:
        model: Model that the call runs.
        options: Arguments of `generate`.
    Raises:
        ConfigError: The options select such a cache, or the model's defaults do.
    """
    given = options.get("cache_implementation")
    for config in (options.get("generation_config"), model.generation_config):
        given = given if given is not None else getattr(config, "cache_implementation", None)
    _refuse_cache(given)


def _refuse_cache(implementation: str | None) -> None:
    if implementation not in (None, "dynamic"):
        raise ConfigError(
            f"cache_implementation: got {implementation!r}; expected None or 'dynamic', as"
            " rejected draft tokens are removed from the cache. Leave it out."
        )


def refuse_virtual_tokens(model: PreTrainedModel) -> None:
    """Reject adapters that add virtual tokens, such as those of prompt tuning.

    Raises:
        ConfigError: The model has such an adapter; the message names it.
    """
    # PEFT replaces this method during generation, so that prompt tuning can add embeddings, and
    # prefix tuning can add a cache.
    adapter = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    config = getattr(adapter, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ConfigError(
            f"{type(config).__name__}: adapters that add virtual tokens are not supported. Use an"
            " adapter in the weights, such as LoRA, or model.generate without custom_generate."
        )


def refuse_inputs(model: PreTrainedModel, input_ids: Tensor, inputs: dict[str, Any]) -> bool:
    """Reject empty prompts, embeddings, and inputs that the model does not accept.

    Args:
        model: Model that the call runs.
        input_ids: Token ids.
        inputs: Arguments for the model's `forward`.
    Returns:
        Whether there are inputs besides text, such as images.
    Raises:
        ConfigError: An unsupported input was passed; the message names it.
    """
    if inputs.get("inputs_embeds") is not None or input_ids.shape[1] == 0:
        raise ConfigError(
            "The prompt is empty or given as inputs_embeds, but drafts need token ids. Pass"
            " input_ids."
        )
    others = {
        name for name, value in inputs.items() if name not in _USED_INPUTS and value is not None
    }
    unsupported = sorted(others - forward_parameters(model) if takes_media(model) else others)
    if unsupported:
        raise ConfigError(
            f"The inputs {', '.join(unsupported)} are not supported; supported are"
            f" {', '.join(sorted(_USED_INPUTS))}. Use model.generate without custom_generate for"
            " models with other inputs."
        )
    return bool(others)


def refuse_ids(model: PreTrainedModel, input_ids: Tensor, padding: list[int]) -> None:
    """Reject token ids outside the vocabulary.

    Raises:
        ConfigError: A token id is out of range; the message names it.
    """
    vocab_size = model.get_input_embeddings().num_embeddings
    for row, (ids, first) in enumerate(zip(input_ids, padding, strict=True)):
        low, high = int(ids[first:].min()), int(ids[first:].max())
        if low < 0 or high >= vocab_size:
            raise ConfigError(
                f"input_ids: got ids from {low} to {high} in row {row}; expected 0 to"
                f" {vocab_size - 1}."
            )


def refuse_positions(input_ids: Tensor, padding: list[int], position_ids: Tensor | None) -> None:
    """Reject positions unless they number each row's tokens from 0.

    Raises:
        ConfigError: The positions number the tokens differently.
    """
    if position_ids is None:
        return
    batch, width = input_ids.shape
    columns = torch.arange(width, device=position_ids.device).expand(batch, width)
    expected = columns - torch.tensor(padding, device=position_ids.device)[:, None]
    is_token = expected >= 0
    if (
        position_ids.dim() != 2
        or position_ids.shape[1] != width
        or not torch.equal(position_ids.expand(batch, width)[is_token], expected[is_token])
    ):
        raise ConfigError(
            "position_ids: only positions that count each row's tokens from 0 are supported. Leave"
            " them out."
        )


def refuse_batch(
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    others: list[Any],
    pad: Tensor | None,
) -> None:
    """Reject options that cannot be used with several rows.

    Raises:
        ConfigError: An unsupported option was passed; the message names it.
    """
    if any(type(entry) is UnbatchedClassifierFreeGuidanceLogitsProcessor for entry in processors):
        raise ConfigError(
            "guidance_scale: guidance supports one prompt, as it has its own cache. Pass one"
            " prompt at a time."
        )
    # transformers makes the same check before padding
    has_eos = any(hasattr(entry, "eos_token_id") for entry in criteria)
    if (others or has_eos) and (pad is None or not has_eos):
        raise ConfigError(
            "The rows of the batch can end at different steps, but no end-of-sequence or padding"
            " token is set. Set eos_token_id and pad_token_id, or pass one prompt at a time."
        )
