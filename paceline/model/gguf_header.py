"""Read the configuration, tokenizer and tensor list from GGUF headers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from paceline.errors import ConfigError
from paceline.model import gguf
from paceline.model.gguf_config import read_config
from paceline.model.gguf_directory import header_digest
from paceline.util import cache

KIND = "gguf-header-v7"  # increase the number when the written files change
_TOKEN_ATTRIBUTES = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
_OTHER_WAYS = "Use the original model, or run this file in llama.cpp (\0engine='llama.cpp'\0)."
_COMMENT = "#version"  # start of a comment in a list of merges
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def files_of(path: Path) -> list[Path]:
    """Return all files of a split model in order, given any one of them.

    Raises:
        ConfigError: A file is missing.
    """
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    name, count = match[1], int(match[3])
    files = [
        path.with_name(f"{name}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)
    ]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ConfigError(
            f"model {str(path)!r}: got {count - len(missing)} of its {count} files; expected all."
            f" Put {missing[0]} into the same folder."
        )
    return files


def described(files: Sequence[Path]) -> Path:
    """Return a cached folder with a model's configuration, tokenizer and tensor list.

    Args:
        files: The model's GGUF files; the first one contains the metadata.
    Raises:
        ConfigError: A file is damaged or has an unsupported format. Also raised if a package is
            missing or the cache cannot be written.
    """
    first = files[0]
    with gguf.readable(first):
        return cache.obtain_folder(
            cache.root() / KIND / _headers_checksum(files),
            str(first),
            lambda folder: describe(files, folder),
            lambda: gguf.say(f"another process reads {first}"),
        )


def _headers_checksum(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(_header_digest(path.absolute(), stat.st_size, stat.st_mtime_ns))
        digest.update(stat.st_size.to_bytes(8, "little"))
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _header_digest(path: Path, size: int, time_ns: int) -> bytes:
    """Return the SHA-256 of everything that `describe` reads from a file."""
    try:
        return header_digest(path)
    except OSError:
        raise
    except Exception:  # a damaged header, which `describe` reports and never stores
        return b""


def _require_whole_model(path: Path, metadata: Mapping[str, Any], num_files: int) -> None:
    """Raise an error for an adapter, or for a split model with missing files."""
    kind = metadata.get("general.type", "model")
    if kind == "adapter":
        raise ConfigError(
            f"model {str(path)!r}: got an adapter; expected a model. Merge the adapter into its"
            " model first."
        )
    if kind != "model":
        raise gguf.refused(path, f"a file of type {kind!r}")
    if max(1, metadata.get("split.count", 1)) != num_files:
        raise gguf.refused(path, f"one of {metadata['split.count']} parts")


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer to a folder, and list its added tokens in its configuration.

    Without this list, transformers would parse the vocabulary again to find the added tokens, which
    would take 16 MB of memory at each start.
    """
    tokenizer.save_pretrained(folder)
    _shorten_merges(folder / "tokenizer.json")
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens_decoder"] = {
        str(token_id): {name: getattr(token, name) for name in _TOKEN_ATTRIBUTES}
        for token_id, token in tokenizer.added_tokens_decoder.items()
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _shorten_merges(path: Path) -> None:
    """Rewrite each merge in a tokenizer file, such as ["a", "b"], as a string, "a b".

    The tokenizers library needs half as much memory to read strings as to read lists. The lists
    stay if a token contains a space, or if a string would begin like a comment.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    merges = [" ".join(merge) for merge in content["model"].get("merges", ())]
    if merges and all(merge.count(" ") == 1 and not merge.startswith(_COMMENT) for merge in merges):
        content["model"]["merges"] = merges
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def describe(files: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Write the contents of GGUF headers to a folder; return the entry's metadata.

    The contents are the configuration, the tokenizer and the tensor table.

    Args:
        files: The model's GGUF files; the first one contains the metadata.
        folder: Empty folder, which becomes an entry of the cache.
    Raises:
        ConfigError: A file is damaged, the model is not a decoder, or a package is missing.
    """
    path = files[0]
    gguf.require_packages(path)
    metadata = gguf.read_metadata(path)
    _require_whole_model(path, metadata, len(files))
    from paceline.model import gguf_tensors  # imports the `gguf` package
    from paceline.model.gguf_rope import set_rope_scaling

    try:
        with gguf.quiet():
            config = read_config(path, metadata, folder)
            if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
                raise gguf.UnsupportedContent(
                    f"architecture {metadata['general.architecture']}, which is not a decoder"
                )
            table = gguf_tensors.read(files)
            set_rope_scaling(config, metadata, lambda name: table.vector(files, name))
            config.tie_word_embeddings = gguf_tensors.HEAD not in table.tensors
            model = gguf_tensors.empty_model(config)
            gguf.set_end_ids(model, metadata)
            table.connect(model, str(metadata["general.architecture"]))
            tokenizer = gguf.read_tokenizer(path, metadata, config)
    except (ConfigError, OSError):
        raise
    except gguf.UnsupportedContent as error:
        raise gguf.refused(path, str(error), _OTHER_WAYS) from error
    except Exception as error:  # the readers raise many types for a file they cannot read
        reason = " ".join(str(error).split()) or type(error).__name__
        raise gguf.refused(
            path,
            f"one that transformers {transformers.__version__} cannot read ({reason})",
            _OTHER_WAYS,
        ) from error
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        _save_tokenizer(tokenizer, folder)
    table.write(folder)
    return {
        "architecture": metadata["general.architecture"],
        "dtype": "bfloat16",
        "parameters": model.num_parameters(),
        "tokenizer": tokenizer is not None,
        "transformers": transformers.__version__,
    }
