"""Load tokenizers from the same sources as models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel

from paceline.errors import ConfigError
from paceline.model.sources import missing_source, tokenizer_source


def load_tokenizer(tokenizer: Any, model: str | Path | PreTrainedModel, unpack: bool = True) -> Any:
    """Load a tokenizer, by default the one in the model's folder.

    Args:
        tokenizer: Directory, hub id or tokenizer object; None means the tokenizer of the model.
        model: Directory, hub id, GGUF file, built-in name or loaded model. A loaded model has no
            tokenizer.
        unpack: Whether a GGUF model is converted. With False, only its header is read.
    Returns:
        The tokenizer, or None if the model's tokenizer is missing or cannot be read.
    Raises:
        ConfigError: The named tokenizer cannot be read.
    """
    if tokenizer is None:
        return None if isinstance(model, PreTrainedModel) else _read_tokenizer(model, unpack)[0]
    if not isinstance(tokenizer, str | Path):
        if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
            raise ConfigError(
                f"tokenizer: got a {type(tokenizer).__name__}; expected a directory, a hub id or a"
                " tokenizer of transformers."
            )
        return tokenizer
    loaded, error = _read_tokenizer(tokenizer, unpack)
    if loaded is None:
        raise ConfigError(f"cannot load a tokenizer from {str(tokenizer)!r}: {error}")
    return loaded


def tokenizer_error(model: str | Path | PreTrainedModel) -> str:
    """Return a sentence that explains why a model's tokenizer cannot be read.

    The sentence begins with a space, because callers append it to an error message. The result is
    "" if the model has no tokenizer, or has one that can be read.
    """
    if isinstance(model, PreTrainedModel) or (
        Path(model).is_dir() and not any(Path(model).glob("*[tv]o[kc]*"))
    ):
        return ""
    error = _read_tokenizer(model, unpack=False)[1]  # a conversion would take minutes
    return error and f" The tokenizer in the model's folder cannot be read: {error}"


def _read_tokenizer(source: str | Path, unpack: bool = True) -> tuple[Any, str]:
    """Return (tokenizer, "") on success, and (None, error message) on failure."""
    missing = missing_source(source)
    if missing:
        return None, missing
    try:
        return AutoTokenizer.from_pretrained(tokenizer_source(source, unpack)), ""
    except Exception as error:  # the libraries raise many error types for damaged files
        return None, " ".join(str(error).split()) or type(error).__name__
