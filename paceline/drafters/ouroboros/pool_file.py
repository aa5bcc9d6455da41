"""A phrase pool that outlives its process: one safetensors file, versioned, checksummed, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save

from paceline.common.files import write_atomically
from paceline.drafters.shared.ngram_pool import Ngram, NgramPool
from paceline.errors import ConfigError

_KIND, _VERSION = "paceline phrase pool", "1"
_ARRAYS = ("key_lengths", "keys", "phrases_per_key", "phrase_lengths", "phrases")  # each [count], int32
_LEAST_PAUSE = 10.0  # seconds between two saves,
_PAUSES_PER_SAVE = 50  # and at least this many times what a save takes
_HELP = "Delete it or name another file, or begin with an empty pool (bad_pool=cold)."


class KeptPool:
    """A pool and its file. Several processes may share the file; each save is the saver's pool, the last one stays.

    Args:
        path: the file.
        pool: filled from the file.
        longest: most tokens of a phrase; longer ones in the file are cut.
        vocab_size: vocabulary of the models; the file must have been written for the same.
        cold: begin empty where the file is damaged or another's, with a warning. It is then set aside as PATH.refused
            before anything is written in its place.
    Raises:
        ConfigError: the file is there and cannot be used, or its folder is not there; it says what is wrong.
    """

    def __init__(self, path: str, pool: NgramPool, longest: int, vocab_size: int, cold: bool) -> None:
        self.path, self.pool, self.changed = Path(path), pool, False
        self._vocab_size, self._refused, self._due = vocab_size, False, 0.0
        if not self.path.parent.is_dir():
            raise ConfigError(f"pool {path!r}: got no folder {str(self.path.parent)!r}; expected an existing one. Make it first.")
        if not self.path.exists():
            return
        try:
            for key, phrases in read_pool(self.path, vocab_size):
                for phrase in phrases:
                    pool.insert(key, phrase[:longest])
        except ConfigError as error:
            if not cold:
                raise
            self._refused = True
            warnings.warn(f"{error} The pool begins empty, as asked.", stacklevel=2)

    def save(self) -> None:
        """Write the file now.

        Raises:
            ConfigError: it cannot be written.
        """
        start = time.monotonic()
        if self._refused:
            self.path.replace(f"{self.path}.refused")
            self._refused = False
        write_atomically(self.path, pool_bytes(self.pool, self._vocab_size))
        self.changed = False
        now = time.monotonic()
        self._due = now + max(_LEAST_PAUSE, _PAUSES_PER_SAVE * (now - start))

    def save_changes(self, wait: bool = False) -> None:
        """Write the file if the pool may have changed. Requests do not fail by it.

        Args:
            wait: not too soon after the last time.
        """
        if not self.changed or (wait and time.monotonic() < self._due):
            return
        try:
            self.save()
        except (ConfigError, OSError) as error:
            self._due = time.monotonic() + _LEAST_PAUSE
            warnings.warn(f"the phrase pool was not saved: {error}", stacklevel=2)


def pool_bytes(pool: NgramPool, vocab_size: int) -> bytes:
    """Return a pool as the content of a file, keys and phrases in their order."""
    entries = list(pool.items())
    phrases = [phrase for _, found in entries for phrase in found]
    columns = (
        [len(key) for key, _ in entries],
        [token for key, _ in entries for token in key],
        [len(found) for _, found in entries],
        [len(phrase) for phrase in phrases],
        [token for phrase in phrases for token in phrase],
    )
    arrays = {name: np.asarray(column, dtype=np.int32) for name, column in zip(_ARRAYS, columns, strict=True)}
    head = {"kind": _KIND, "version": _VERSION, "vocab_size": str(vocab_size)}
    content: bytes = save(arrays, {**head, "sha256": _digest(head, arrays)})
    return content


def read_pool(path: Path, vocab_size: int) -> list[tuple[Ngram, list[Ngram]]]:
    """Return keys with their phrases, in the order they were saved.

    Raises:
        ConfigError: the file cannot be read, is no pool, is damaged, or is of another version or vocabulary.
    """
    head, arrays = _open(path)
    if head.get("kind") != _KIND:
        raise ConfigError(f"pool {str(path)!r}: got {head.get('kind', 'something else')!r}; expected {_KIND!r}. {_HELP}")
    if head.get("version") != _VERSION:
        raise ConfigError(f"pool {str(path)!r}: got version {head.get('version')!r}; expected {_VERSION!r}. {_HELP}")
    if head.pop("sha256", None) != _digest(head, arrays) or set(arrays) != set(_ARRAYS):
        raise ConfigError(f"pool {str(path)!r}: got damaged content; expected what fits its checksum. {_HELP}")
    if head["vocab_size"] != str(vocab_size):
        raise ConfigError(
            f"pool {str(path)!r}: got a vocabulary of {head['vocab_size']} tokens; expected {vocab_size}, as the models have."
            f" {_HELP}"
        )
    keys = _cut(arrays["keys"], arrays["key_lengths"])
    phrases = _cut(arrays["phrases"], arrays["phrase_lengths"])
    ends = accumulate(arrays["phrases_per_key"].tolist(), initial=0)
    return [(key, phrases[start:end]) for key, (start, end) in zip(keys, pairwise(ends), strict=True)]


def _open(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError, TypeError, ValueError, LookupError) as error:
        raise ConfigError(
            f"pool {str(path)!r}: got a file that cannot be read: {error}; expected safetensors. {_HELP}"
        ) from error


def _digest(head: dict[str, str], arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _cut(tokens: Any, lengths: Any) -> list[Ngram]:
    flat, ends = tokens.tolist(), accumulate(lengths.tolist(), initial=0)
    return [tuple(flat[start:end]) for start, end in pairwise(ends)]
