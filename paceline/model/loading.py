"""Load models from directories, the model hub or GGUF files, or by built-in name.

Only safetensors and GGUF files are read, never pickles.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HfHubHTTPError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    PreTrainedModel,
)

from paceline import demo
from paceline.backend.model_products import has_bfloat16_kernels
from paceline.backend.products import Products
from paceline.backend.resolve import backend_of
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle import checkpoint
from paceline.model.eagle.modules import uses_target_states
from paceline.model.load_options import dtype_named, require_packing_possible, usable_device
from paceline.model.quantisation import foreign_weights
from paceline.model.reduced_vocabulary import keep_tokens, read_kept
from paceline.model.settings import MAX_FLOAT32_DRAFT_PARAMETERS, MAX_NAMED_WEIGHTS
from paceline.model.sources import (
    checkpoint_source,
    missing_source,
    packed_source,
    unusable_source,
)

_LOADERS = (
    (MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM),
    (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoModelForImageTextToText),
    (MODEL_FOR_MULTIMODAL_LM_MAPPING, AutoModelForMultimodalLM),
)
_NOT_ON_HUB = "the hub refuses it. Check the name, or pass a directory or a GGUF file."


def load_model(
    model: str | Path | PreTrainedModel,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    unpack: bool | None = True,
    weights: str | None = None,
) -> PreTrainedModel:
    """Load a model in eval mode; an already loaded model keeps its dtype and device.

    Args:
        model: Directory, hub id, GGUF file or loaded model.
        dtype: "float32", "bfloat16", "float16", a torch dtype, or "auto" (the checkpoint's dtype).
        device: Torch device; "auto" selects a GPU if one is available.
        unpack: Whether to convert a GGUF file to a checkpoint. With False, a model that runs in
            bfloat16 on a CPU uses the packed weights in the file. None converts the file only if
            the processor lacks bfloat16 instructions.
        weights: Format into which the weights of a checkpoint are packed, "q8_0" or "q4_k"; None
            leaves them unchanged. Packing changes the model, which then runs in bfloat16 on a CPU.
    Raises:
        ConfigError: No model was found, the checkpoint is damaged or does not match its
            configuration, or the dtype or device is unknown.
    """
    if weights is not None:
        require_packing_possible(model, weights, dtype, device)
    if isinstance(model, PreTrainedModel):
        return model.eval()
    if not isinstance(model, str | Path):
        raise ConfigError(
            f"model: got a {type(model).__name__}; expected a directory, a hub id, a GGUF file or a"
            f" loaded transformers model.{_how_to_unwrap(model)}"
        )
    torch_dtype = dtype_named(dtype)
    device = usable_device(device)
    require_source(model)
    packed = None if must_unpack(model, torch_dtype, device, unpack) else packed_source(model)
    if packed is not None:
        from paceline.model.packed_model import load_packed  # an optional package

        return load_packed(packed)
    source = checkpoint_source(model)
    if weights is not None:
        from paceline.model.weight_packing import load_with_packed_weights  # an optional package

        return load_with_packed_weights(
            source, weights, lambda: load_model(source, torch_dtype or "auto", device)
        )
    return _load_checkpoint(model, source, torch_dtype).to(device).eval()


def require_source(model: str | Path, owner: str = "") -> None:
    """Raise an error if no model with the given name can be found.

    Args:
        model: Directory, hub id, GGUF file or built-in name.
        owner: Start of the error message, which may name an option.
    Raises:
        ConfigError: No model was found.
    """
    reason = missing_source(model) or unusable_source(model)
    if reason:
        raise ConfigError(
            f"{owner}cannot load a causal language model from {str(model)!r}: {reason}"
        )


def require_draft(model: object) -> None:
    """Raise an error if no draft model with the given name can be found."""
    if isinstance(model, str | Path):
        source = demo.draft_of(model) if isinstance(model, str) else model
        require_source(source, "\0draft_model\0: ")


def _load_checkpoint(
    model: str | Path, source: str, torch_dtype: torch.dtype | None
) -> PreTrainedModel:
    loaded: Any
    try:
        loaded, loading_info = _auto_class(source).from_pretrained(
            source,
            dtype=torch_dtype or "auto",
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # a damaged checkpoint fails at the point where it is first read
        hub = f"it is not a local path, and {_NOT_ON_HUB} " if _is_refused(error) else ""
        raise ConfigError(
            f"cannot load a causal language model from {str(model)!r}: {hub}{error}"
            f" ({type(error).__name__})"
        ) from error
    _require_all_weights(model, loaded, loading_info)
    checked: PreTrainedModel = loaded
    return checked


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an HTTP error from the model hub is among an error's causes."""
    while error is not None:
        if isinstance(error, HfHubHTTPError):
            return True
        error = error.__cause__ or error.__context__
    return False


def must_unpack(
    model: str | Path | PreTrainedModel,
    dtype: str | torch.dtype | None,
    device: str | torch.device,
    unpack: bool | None,
) -> bool:
    """Return False if a model will use the packed weights in its GGUF file.

    In all other cases, including models without a GGUF file, the result is True.

    Args:
        model: Directory, hub id, GGUF file or loaded model.
        dtype: Name of a dtype, or a torch dtype; None or "auto" means the checkpoint's dtype.
        device: Torch device; "auto" selects a GPU if one is available.
        unpack: Whether to convert a GGUF file; None converts the file only if the processor lacks
            bfloat16 instructions.
    Raises:
        ConfigError: The dtype or device is unknown.
    """
    if unpack or packed_source(model) is None:
        return True
    is_bfloat16 = dtype is None or dtype_named(dtype) in (None, torch.bfloat16)
    if not is_bfloat16 or torch.device(usable_device(device)).type != "cpu":
        return True
    return unpack is None and not has_bfloat16_kernels()


def _auto_class(source: str) -> Any:
    """Return the transformers class that loads a checkpoint.

    Multimodal models are supported, because they can answer text prompts as well.
    """
    try:
        config = AutoConfig.from_pretrained(source)
    except Exception:  # an adapter has no config; other errors are reported when the model loads
        return AutoModelForCausalLM
    return next(
        (auto for mapping, auto in _LOADERS if type(config) in mapping), AutoModelForCausalLM
    )


def _how_to_unwrap(model: Any) -> str:
    if hasattr(model, "merge_and_unload"):  # a PeftModel has the methods of its adapter
        return " Pass what its merge_and_unload() returns."
    if hasattr(model, "get_base_model"):
        return " Its adapter cannot be merged into the weights: use its own generate."
    return (
        " Pass the model that was compiled, its _orig_mod." if hasattr(model, "_orig_mod") else ""
    )


def load_draft(
    model: str | Path | PreTrainedModel,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> PreTrainedModel:
    """Load a draft model, with its reduced vocabulary if it has one.

    The name "demo" selects the draft model of the built-in pair. A drafter must attach an
    EAGLE-style draft model to its target before use.

    Args:
        model: Directory, hub id, GGUF file, built-in name or loaded model.
        dtype: "float32", "bfloat16", "float16", a torch dtype, or "auto" for the checkpoint's.
        device: Torch device; "auto" selects a GPU if one is available.
    Raises:
        ConfigError: The model cannot be loaded, or its reduced vocabulary is damaged.
    """
    source = demo.draft_of(model) if isinstance(model, str) else model
    if not isinstance(source, PreTrainedModel) and checkpoint.is_reading(str(source)):
        return checkpoint.load(str(source), dtype_named(dtype), usable_device(device))
    loaded = load_model(source, dtype, device)
    if not isinstance(source, PreTrainedModel):
        vocabulary_ids = read_kept(
            checkpoint_source(source), int(loaded.config.get_text_config(decoder=True).vocab_size)
        )
        if vocabulary_ids is not None:
            keep_tokens(loaded, vocabulary_ids)
    return loaded


def _require_all_weights(
    model: object, loaded: PreTrainedModel, loading_info: Mapping[str, Any]
) -> None:
    """Raise an error if weights are missing from a model's files and would be random."""
    if getattr(loaded.config.get_text_config(decoder=True), "num_hidden_layers", 1) < 1:
        raise ConfigError(
            f"cannot load a causal language model from {str(model)!r}: its config names no layers."
            " Correct it."
        )
    wrong = {
        name: f"of shape {list(shape)}, not {list(expected_shape)}"
        for name, shape, expected_shape in sorted(loading_info["mismatched_keys"])
    }
    wrong |= dict.fromkeys(sorted(loading_info["missing_keys"]), "missing")
    if wrong:
        examples = ", ".join(
            f"{name} is {fault}" for name, fault in list(wrong.items())[:MAX_NAMED_WEIGHTS]
        )
        raise ConfigError(
            f"cannot load a causal language model from {str(model)!r}: got {len(wrong)} weights"
            f" that do not fit its config, as {examples}; expected all of them. Correct the config,"
            " or fetch the weights again."
        )


def draft_lm(model: str | Path | PreTrainedModel | CachedLM) -> CachedLM:
    """Wrap a draft model in a `CachedLM`, with the dtype that makes it fastest.

    The draft model's dtype does not affect the target's answers. On a CPU, a small half-precision
    draft model runs as a float32 copy. However, a bfloat16 EAGLE-style draft model stays in
    bfloat16 if the processor has bfloat16 instructions.

    Args:
        model: Any argument of `load_draft`, or a `CachedLM`, which is returned unchanged.
    Raises:
        ConfigError: The model cannot be loaded, or its reduced vocabulary is damaged.
    """
    if isinstance(model, CachedLM):
        return model
    loaded = load_draft(model)
    if loaded.device.type != "cpu" or foreign_weights(loaded) is not None:
        return CachedLM(loaded)
    # bfloat16 kernels save most of the time of the target's LM head, which such drafts include.
    if uses_target_states(loaded) and loaded.dtype == torch.bfloat16 and has_bfloat16_kernels():
        products = Products.of_backend(loaded, backend_of(loaded.device))
        return CachedLM(loaded, batch_invariant=True, products=products)
    if loaded.dtype in (torch.bfloat16, torch.float16) and (
        loaded.num_parameters() <= MAX_FLOAT32_DRAFT_PARAMETERS
    ):
        loaded = copy.deepcopy(loaded).float()
    return CachedLM(loaded)


def eos_token_ids(model: PreTrainedModel, tokenizer: Any = None) -> list[int]:
    """Return a model's end-of-sequence ids.

    The ids are read from the generation config, the model config or the tokenizer, in this order.
    """
    for source in (model.generation_config, model.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return [int(ids)] if isinstance(ids, int) else [int(token_id) for token_id in ids]
    return []
