"""Convert GGUF models to cached bfloat16 checkpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.model import gguf, gguf_header
from paceline.util import cache

KIND = "gguf-v3"  # increase the number when the written files change


def converted(file: str | Path) -> Path:
    """Return the checkpoint directory of a GGUF model, converting the model if needed.

    Conversion prints its progress to standard error.

    Args:
        file: GGUF file; for a model of several files, any of them.
    Raises:
        ConfigError: The file does not exist, is damaged or has an unsupported format. Also raised
            if a package is missing or the cache cannot be written.
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"model: there is no GGUF file at {str(file)!r}. Correct the path.")
    files = gguf_header.files_of(path)
    with gguf.readable(path):
        return cache.obtain_folder(
            cache.root() / KIND / _checksum(files),
            str(path),
            lambda folder: _convert(path, files, folder),
            lambda: gguf.say(f"another process converts {path}"),
        )


def _checksum(files: Sequence[Path]) -> str:
    checksums = [cache.checksum(file) for file in files]
    if len(checksums) == 1:
        return checksums[0]
    return hashlib.sha256(" ".join(checksums).encode()).hexdigest()


def _convert(path: Path, files: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Write the model and tokenizer to `folder`; return the cache entry's metadata."""
    gguf.require_packages(path)
    from paceline.model.gguf_tensors import TABLE_FILE  # imports an optional package
    from paceline.model.packed_model import load_described

    start = time.perf_counter()
    size = sum(file.stat().st_size for file in files)
    gguf.say(f"converting {path.name} ({size / 1e6:.0f} MB), once, into {cache.root()} ...")
    metadata = gguf_header.describe(files, folder)
    with gguf.quiet():
        try:
            model = load_described(path, files, folder, packed=False)
        except NotImplementedError as error:  # the `gguf` package cannot unpack a format
            raise gguf.refused(path, f"one whose weights cannot be unpacked ({error})") from error
        (folder / TABLE_FILE).unlink()
        try:
            model.save_pretrained(folder)
        except Exception as error:  # safetensors raises its own type if the disk is full
            raise OSError(f"cannot write {folder}: {error}") from error
    gguf.say(f"converted {path.name} in {time.perf_counter() - start:.0f} s")
    return metadata
