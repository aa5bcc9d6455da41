"""Models in GGUF files: unpacked once by transformers into the cache, as a bfloat16 directory
with its tokenizer.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from paceline.errors import ConfigError
from paceline.util import cache

SUFFIX = ".gguf"
_KIND = "gguf-v1"  # another number when what is written changes
_PACKAGES = ("gguf", "accelerate")
# llama.cpp ends an answer at any of them
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def is_gguf(source: str | Path) -> bool:
    """Whether `source` names a GGUF file."""
    return Path(source).suffix.lower() == SUFFIX


def unpacked(file: str | Path) -> Path:
    """Return the directory of a GGUF model, which `from_pretrained` reads; convert it first if that
    has not been done yet.

    Conversion says so on standard error.

    Raises:
        ConfigError: no such file, one that transformers cannot unpack, a missing package, or a
            cache that cannot be written.
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(
            f"model: got {str(file)!r}, which is no file; expected a GGUF file. Correct the path."
        )
    try:
        return cache.obtain(
            _KIND,
            path,
            lambda folder: _convert(path, folder),
            lambda: _say(f"another process converts {path}"),
        )
    except OSError as error:
        raise ConfigError(
            f"model: got {str(file)!r}, which cannot be read ({error}); expected a readable file."
        ) from error


def _convert(path: Path, folder: Path) -> dict[str, Any]:
    """Write model and tokenizer into `folder`; return what the cache notes about them."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"model {str(path)!r}: got a GGUF file and no package {' nor '.join(missing)}; expected"
            f" both. Run: pip install {' '.join(missing)}, or install paceline[gguf]."
        )
    metadata = _metadata(path)
    start = time.perf_counter()
    _say(
        f"converting {path.name} ({path.stat().st_size / 1e6:.0f} MB), once, into {cache.root()}"
        " ..."
    )
    try:
        with _quiet():
            model = _model(path, metadata)
            tokenizer = _tokenizer(path, metadata)
    except Exception as error:  # whatever its readers raise on a file they cannot read
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _refused(
            path, f"one that transformers {transformers.__version__} cannot unpack ({reason})"
        ) from error
    try:
        with _quiet():
            model.save_pretrained(folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
    except Exception as error:  # safetensors has errors of its own for a full disk
        raise OSError(f"cannot write {folder}: {error}") from error
    _say(f"converted {path.name} in {time.perf_counter() - start:.0f} s")
    return {
        "architecture": metadata["general.architecture"],
        "dtype": "bfloat16",
        "parameters": model.num_parameters(),
        "tokenizer": tokenizer is not None,
        "transformers": transformers.__version__,
    }


def _metadata(path: Path) -> dict[str, Any]:
    """Return what the header says, once the file is known to be as long as that asks for."""
    from transformers.integrations.gguf import GgufHeader, read_gguf_metadata

    try:
        metadata: dict[str, Any] = read_gguf_metadata(str(path))[0]
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise _refused(path, "one whose header is cut off or damaged") from error
    except ValueError as error:
        raise _refused(path, f"something else ({error})") from error
    try:
        header = GgufHeader.from_file(str(path))
    except ValueError:
        return metadata  # a type this reader does not know; the one that unpacks may
    end = header.data_start + max((one.offset + one.nbytes for one in header.tensors), default=0)
    if end > path.stat().st_size:
        raise _refused(path, f"{path.stat().st_size} of its {end} bytes: the file is truncated")
    if metadata.get("split.count", 1) > 1:
        raise _refused(path, f"one of {metadata['split.count']} parts")
    return metadata


def _model(path: Path, metadata: dict[str, Any]) -> PreTrainedModel:
    """Return the model in bfloat16, with the end-of-sequence ids of the file."""
    model: PreTrainedModel
    model, loading = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
        local_files_only=True,
    )
    if loading["missing_keys"]:  # they would have random values
        raise ValueError(f"no weights for {', '.join(sorted(loading['missing_keys'])[:3])}")
    known = model.generation_config.eos_token_id
    ids = [metadata.get(f"tokenizer.ggml.{name}") for name in _END_IDS]
    if isinstance(
        known, list
    ):  # of architectures of which transformers knows more than the file says
        ids += known
    unique = list(dict.fromkeys(int(one) for one in ids if one is not None))
    first = unique[0] if len(unique) == 1 else unique or None
    model.config.eos_token_id = model.generation_config.eos_token_id = first
    model.generation_config._from_model_config = False
    return model


def _tokenizer(path: Path, metadata: dict[str, Any]) -> Any:
    """Return the tokenizer with the chat template of the file; None where the file has none."""
    if "tokenizer.ggml.tokens" not in metadata:
        return None
    tokenizer = AutoTokenizer.from_pretrained(
        str(path.parent), gguf_file=path.name, local_files_only=True
    )
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def _refused(path: Path, came: str) -> ConfigError:
    return ConfigError(
        f"model {str(path)!r}: got {came}; expected a whole GGUF file of a decoder that"
        " transformers can unpack. Fetch it again, or use the original model."
    )


def _say(line: str) -> None:
    print(f"paceline: {line}", file=sys.stderr, flush=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own bars and notes off the terminal."""
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
