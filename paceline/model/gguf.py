"""Read the metadata and tokenizer of GGUF files."""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    TOKENIZER_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from paceline.errors import ConfigError, install_command

SUFFIX = ".gguf"
_MAGIC = b"GGUF"  # the first bytes of every file
_PACKAGES = ("gguf", "accelerate")
# llama.cpp ends an answer at any of these tokens.
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


class UnsupportedContent(ValueError):
    """Raised for content of a GGUF file that the transformers model cannot represent."""


def is_gguf(source: str | Path) -> bool:
    """Return whether `source` names a GGUF file."""
    return Path(source).suffix.lower() == SUFFIX


def require_packages(path: Path) -> None:
    """Raise an error if the packages that read GGUF files are not installed."""
    packages = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if packages:
        raise ConfigError(
            f"model {str(path)!r}: reading a GGUF file needs {' and '.join(packages)}."
            f" Run: pip install {' '.join(packages)}, or {install_command('gguf')}."
        )


def read_metadata(path: Path) -> dict[str, Any]:
    """Check that a GGUF file is complete, and return the metadata in its header."""
    from transformers.integrations.gguf import GgufHeader, read_gguf_metadata

    try:
        metadata: dict[str, Any] = read_gguf_metadata(str(path))[0]
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise refused(path, "one whose header is cut off or damaged") from error
    except ValueError as error:
        raise refused(path, f"something else ({error})") from error
    try:
        header = GgufHeader.from_file(str(path))
    except ValueError:
        return metadata  # an unknown tensor type: transformers' own reader may know it
    end = header.data_start + max(
        (tensor.offset + tensor.nbytes for tensor in header.tensors), default=0
    )
    if end > path.stat().st_size:
        raise refused(path, f"{path.stat().st_size} of its {end} bytes: the file is truncated")
    return metadata


def set_end_ids(model: PreTrainedModel, metadata: dict[str, Any]) -> None:
    """Set a model's end-of-sequence ids from its GGUF header."""
    known = model.generation_config.eos_token_id
    ids = [metadata.get(f"tokenizer.ggml.{name}") for name in _END_IDS]
    if isinstance(known, list):  # for some architectures, transformers knows more ids than the file
        ids += known
    unique = list(dict.fromkeys(int(token_id) for token_id in ids if token_id is not None))
    first = unique[0] if len(unique) == 1 else unique or None
    model.config.eos_token_id = model.generation_config.eos_token_id = first
    model.generation_config._from_model_config = False


def read_tokenizer(path: Path, metadata: dict[str, Any], config: PreTrainedConfig) -> Any:
    """Return the tokenizer and its chat template; None if the file has no tokenizer.

    Args:
        path: GGUF file.
        metadata: Metadata in the file's header.
        config: Configuration of the model in the file.
    """
    if "tokenizer.ggml.tokens" not in metadata:
        return None
    # `AutoTokenizer` reads the header again to find the class, which takes seconds.
    tokenizer_class = TOKENIZER_MAPPING.get(type(config), PreTrainedTokenizerFast)
    if not issubclass(tokenizer_class, PreTrainedTokenizerFast):
        tokenizer_class = PreTrainedTokenizerFast
    tokenizer = tokenizer_class.from_pretrained(
        str(path.parent), gguf_file=path.name, local_files_only=True
    )
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def architecture_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for a file's architecture, with the keys' prefix removed.

    For example, the key `llama.block_count` becomes `block_count`.
    """
    prefix = f"{metadata['general.architecture']}."
    return {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Raise a ConfigError for `path` if the `with` block raises an OSError.

    Args:
        path: File that the `with` block reads.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"model: {str(path)!r} cannot be read ({error}). Check the file and its permissions."
        ) from error


def refused(
    path: Path, content: str, fix: str = "Download it again, or use the original model."
) -> ConfigError:
    """Return the error for a GGUF file that paceline cannot read.

    Args:
        path: GGUF file.
        content: What the file contains; the message inserts this phrase after "got".
        fix: Sentence that tells the user what to do.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            content = "a file that does not start with the GGUF magic bytes"
    return ConfigError(
        f"model {str(path)!r}: got {content}; expected a complete GGUF file of a decoder that"
        f" transformers can unpack. {fix}"
    )


def say(line: str) -> None:
    """Print one line of progress to standard error."""
    print(f"paceline: {line}", file=sys.stderr, flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress transformers' progress bars and messages in the `with` block."""
    logging = transformers.logging
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
