"""Models and tokenizers from a directory, a hub id, a GGUF file, an embedded word, or already
loaded.

No pickle is read: safetensors and GGUF only.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from paceline import demo
from paceline.cpu import amx, avx512_dot
from paceline.cpu.linear.own import Products
from paceline.errors import ConfigError, did_you_mean
from paceline.model import gguf
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle import checkpoint
from paceline.model.eagle.direct import DirectLlama, suits
from paceline.model.eagle.modules import uses_target_states
from paceline.model.model_view import ModelView
from paceline.model.quantisation import foreign_weights
from paceline.model.reduced_vocabulary import keep_tokens, read_kept

_NAMED = 3  # weights that an error names
_SMALL = 10_000_000  # parameters
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_LOADERS = (
    (MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM),
    (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoModelForImageTextToText),
    (MODEL_FOR_MULTIMODAL_LM_MAPPING, AutoModelForMultimodalLM),
)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    model: str | Path | PreTrainedModel,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> PreTrainedModel:
    """A model in eval mode. A loaded one is taken as it is (dtype and device are its own).

    Raises:
        ConfigError: nothing to load there, a damaged or unfitting checkpoint, an unknown dtype, or
            no such device.
    """
    if isinstance(model, PreTrainedModel):
        return model.eval()
    if not isinstance(model, str | Path):
        raise ConfigError(
            f"model: got a {type(model).__name__}; expected a directory, a hub id, a GGUF file or a"
            f" loaded transformers model.{_how_to_unwrap(model)}"
        )
    wanted = _torch_dtype(dtype)
    device = _usable(device)
    missing = _missing(model)
    if missing:
        raise ConfigError(f"cannot load a causal language model from {str(model)!r}: {missing}")
    place = _directory(model)
    loaded: Any
    try:
        loaded, found = _auto_class(place).from_pretrained(
            place,
            dtype=wanted or "auto",
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # a damaged checkpoint fails wherever it is first looked at
        raise ConfigError(
            f"cannot load a causal language model from {str(model)!r}: {error}"
            f" ({type(error).__name__})"
        ) from error
    _require_whole(model, loaded, found)
    moved: PreTrainedModel = loaded.to(device).eval()
    return moved


def _auto_class(place: str) -> Any:
    """Return the class of transformers that loads a checkpoint.

    Models that read images or sound as well answer text prompts, too.
    """
    try:
        config = AutoConfig.from_pretrained(place)
    except Exception:  # an adapter has none, and whatever is wrong is told when the model is loaded
        return AutoModelForCausalLM
    return next(
        (auto for mapping, auto in _LOADERS if type(config) in mapping), AutoModelForCausalLM
    )


def _torch_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """Return the dtype of a name; None for "auto".

    Raises:
        ConfigError: it is none.
    """
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return None if isinstance(dtype, str) else dtype
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ConfigError(f"dtype: got {dtype!r}.{did_you_mean(str(dtype), {'auto', *_DTYPES})}")
    return _DTYPES[dtype]


def _how_to_unwrap(model: Any) -> str:
    if hasattr(model, "merge_and_unload"):  # a PeftModel passes on what its adapter can do
        return " Pass what its merge_and_unload() returns."
    if hasattr(model, "get_base_model"):
        return " Its adapter cannot be merged into the weights: use its own generate."
    return (
        " Pass the model that was compiled, its _orig_mod." if hasattr(model, "_orig_mod") else ""
    )


def load_tokenizer(tokenizer: Any, model: str | Path | PreTrainedModel) -> Any:
    """The tokenizer given, by name or as an object, or the one beside `model`; None where there is
    none that can be read.

    Raises:
        ConfigError: the one that is named cannot be read.
    """
    if tokenizer is None:
        return None if isinstance(model, PreTrainedModel) else _tokenizer_of(model)[0]
    if not isinstance(tokenizer, str | Path):
        if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
            raise ConfigError(
                f"tokenizer: got a {type(tokenizer).__name__}; expected a directory, a hub id or a"
                " tokenizer of transformers."
            )
        return tokenizer
    found, error = _tokenizer_of(tokenizer)
    if found is None:
        raise ConfigError(f"cannot load a tokenizer from {str(tokenizer)!r}: {error}")
    return found


def why_no_tokenizer(model: str | Path | PreTrainedModel) -> str:
    """What went wrong with the tokenizer beside `model`, as the end of a message; "" where there
    is none.
    """
    if isinstance(model, PreTrainedModel) or (
        Path(model).is_dir() and not any(Path(model).glob("*[tv]o[kc]*"))
    ):
        return ""
    error = _tokenizer_of(model)[1]
    return error and f" The one beside the model cannot be read: {error}"


def _tokenizer_of(source: str | Path) -> tuple[Any, str]:
    """The tokenizer there, and why it cannot be read; token-id prompts need none."""
    missing = _missing(source)
    if missing:
        return None, missing
    try:
        return AutoTokenizer.from_pretrained(_directory(source)), ""
    except Exception as error:  # the libraries raise plain ones for damaged files
        return None, " ".join(str(error).split()) or type(error).__name__


def _missing(source: str | Path) -> str:
    """Why there is nothing at a path; "" for what exists, and for what may be a hub id or an
    embedded word.
    """
    is_file = str(source).endswith(".gguf")
    if (source != "" and Path(source).exists()) or (
        isinstance(source, str) and not is_file and _HUB_ID.fullmatch(source)
    ):
        return ""
    return f"there is no such {'file' if is_file else 'folder'}. Check the path."


def load_draft(
    model: str | Path | PreTrainedModel,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
) -> PreTrainedModel:
    """A draft model, as `load_model`, with its reduced vocabulary where its folder has one
    (`kept_vocabulary`).

    One that reads the target's states (`reading`) is of use once a drafter that has it is attached
    to its target.

    The word "demo" is the draft of the embedded pair here.

    Raises:
        ConfigError: as `load_model`, and a damaged file of kept tokens.
    """
    named = demo.draft_of(model) if isinstance(model, str) else model
    if not isinstance(named, PreTrainedModel) and checkpoint.is_reading(str(named)):
        return checkpoint.load(str(named), _torch_dtype(dtype), _usable(device))
    loaded = load_model(named, dtype, device)
    if not isinstance(named, PreTrainedModel):
        kept = read_kept(
            _directory(named), int(loaded.config.get_text_config(decoder=True).vocab_size)
        )
        if kept is not None:
            keep_tokens(loaded, kept)
    return loaded


def _usable(device: str | torch.device) -> str | torch.device:
    """Return a device that there is; "auto" is a GPU where there is one.

    Raises:
        ConfigError: there is no such device here.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it has no memory")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        count = torch.cuda.device_count()
        there = [
            "auto",
            "cpu",
            *(f"cuda:{number}" for number in range(count)),
            *["mps"] * torch.backends.mps.is_available(),
        ]
        raise ConfigError(
            f"device: got {str(device)!r}, which torch cannot use here; expected one of:"
            f" {', '.join(there)}. Choose one."
        ) from error
    return device


def _require_whole(model: object, loaded: PreTrainedModel, found: Mapping[str, Any]) -> None:
    """Refuse a model that its files do not fill: what they lack would be random."""
    if getattr(loaded.config.get_text_config(decoder=True), "num_hidden_layers", 1) < 1:
        raise ConfigError(
            f"cannot load a causal language model from {str(model)!r}: its config names no layers."
            " Correct it."
        )
    wrong = {
        name: f"of shape {list(theirs)}, not {list(ours)}"
        for name, theirs, ours in sorted(found["mismatched_keys"])
    }
    wrong |= dict.fromkeys(sorted(found["missing_keys"]), "missing")
    if wrong:
        some = ", ".join(f"{name} is {what}" for name, what in list(wrong.items())[:_NAMED])
        raise ConfigError(
            f"cannot load a causal language model from {str(model)!r}: got {len(wrong)} weights"
            f" that do not fit its config, as {some}; expected all of them. Correct the config, or"
            " fetch the weights again."
        )


def _directory(source: str | Path | PreTrainedModel) -> str:
    """Return the directory or hub id of a model that is named by a directory, a hub id, a GGUF
    file or an embedded word.
    """
    place = demo.target_of(source) if isinstance(source, str) else source
    return (
        str(gguf.unpacked(place))
        if isinstance(place, str | Path) and gguf.is_gguf(place)
        else str(place)
    )


def draft_lm(model: str | Path | PreTrainedModel | CachedLM) -> CachedLM:
    """The `CachedLM` of a draft model, from anything that names one.

    A small half-precision draft runs on a CPU as a float32 copy: there a product in bfloat16 costs
    some 13 microseconds before it begins, and attention of a single query several times its float32
    time (measured with torch 2.13: 1.7 against 1.3 ms per forward of 0.9 M parameters, 3.5 against
    2.0 for a batch of 8). The target's answers do not depend on it. A draft that reads states has
    the target's LM head besides, and is left in half precision where the processor has our products
    for it, with our attention, which takes less time for a handful of queries, with weights of
    integers where it multiplies these, and without what transformers does around its layers.
    """
    if isinstance(model, CachedLM):
        return model
    loaded = load_draft(model)
    if loaded.device.type != "cpu" or foreign_weights(loaded) is not None:
        return CachedLM(loaded)
    if (
        uses_target_states(loaded)
        and loaded.dtype == torch.bfloat16
        and (amx.available() or avx512_dot.available())
    ):
        view = DirectLlama if suits(loaded) else ModelView
        return CachedLM(
            loaded, batch_invariant=True, products=Products.for_guesses(loaded), view=view
        )
    if loaded.dtype in (torch.bfloat16, torch.float16) and loaded.num_parameters() <= _SMALL:
        loaded = copy.deepcopy(loaded).float()
    return CachedLM(loaded)


def eos_token_ids(model: PreTrainedModel, tokenizer: Any = None) -> list[int]:
    """Every end-of-sequence id: the generation config's, else the model config's, else the
    tokenizer's.
    """
    for source in (model.generation_config, model.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return [int(ids)] if isinstance(ids, int) else [int(i) for i in ids]
    return []
