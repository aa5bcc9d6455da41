"""What a drafter has learned, kept for later processes: one safetensors file, versioned,
checksummed, whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from paceline.errors import ConfigError
from paceline.util.files import write_atomically

_LEAST_PAUSE = 10.0  # seconds between two saves,
_PAUSES_PER_SAVE = 50  # and at least this many times what a save takes
Head = dict[str, str]
Arrays = dict[str, NDArray[Any]]
_Read = TypeVar("_Read")


class StateFile:
    """A file and when it is written. Several processes may share it; each save is all the saver
    knows, the last one stays.

    A subclass says what is written, in `content`.

    Args:
        path: the file.
        cold: begin with nothing where the file is refused, with a warning. It is then set aside as
            PATH.refused before anything is written in its place.
    Attributes:
        changed: there may be something to save.
    Raises:
        ConfigError: its folder is not there.
    """

    def __init__(self, path: str, cold: bool = False) -> None:
        self.path, self.changed = Path(path), False
        self._cold, self._refused, self._due = cold, False, 0.0
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"pool {path!r}: got no folder {str(self.path.parent)!r}; expected an existing"
                " one. Make it first."
            )

    def content(self) -> bytes | None:
        """Return what is to be written; None = that cannot be said yet."""
        raise NotImplementedError

    def load(self, read: Callable[[Path], _Read]) -> _Read | None:
        """Return what `read` finds in the file; None where there is none, or it is refused and that
        is no matter.

        Raises:
            ConfigError: the file is there and cannot be used; it says what is wrong.
        """
        if not self.path.exists():
            return None
        try:
            return read(self.path)
        except ConfigError as error:
            if not self._cold:
                raise
            self._refused = True
            warnings.warn(f"{error} The pool begins empty, as asked.", stacklevel=3)
            return None

    def save(self) -> None:
        """Write the file now.

        Raises:
            ConfigError: it cannot be written.
        """
        start = time.monotonic()
        content = self.content()
        if content is None:
            return
        if self._refused:
            self.path.replace(f"{self.path}.refused")
            self._refused = False
        write_atomically(self.path, content)
        self.changed = False
        now = time.monotonic()
        self._due = now + max(_LEAST_PAUSE, _PAUSES_PER_SAVE * (now - start))

    def save_changes(self, wait: bool = False) -> None:
        """Write the file if something may have changed. Requests do not fail by it.

        Args:
            wait: not too soon after the last time.
        """
        if not self.changed or (wait and time.monotonic() < self._due):
            return
        try:
            self.save()
        except (ConfigError, OSError) as error:
            self._due = time.monotonic() + _LEAST_PAUSE
            warnings.warn(f"pool {str(self.path)!r} was not saved: {error}", stacklevel=2)


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file must be.

    Attributes:
        name: as its head says it. version: of its layout. arrays: their names.
        help: what to do about a file that is refused.
    """

    name: str
    version: str
    arrays: tuple[str, ...]
    help: str

    def to_bytes(self, arrays: Arrays, **head: str) -> bytes:
        """Return the content of a file.

        Args:
            head: what its head says besides.
        """
        full = {"kind": self.name, "version": self.version, **head}
        content: bytes = save(arrays, {**full, "sha256": _digest(full, arrays)})
        return content

    def read(self, path: Path) -> tuple[Head, Arrays]:
        """Return the head and the arrays of a file.

        Raises:
            ConfigError: it cannot be read, is of another kind or version, or is damaged.
        """
        head, arrays = self._open(path)
        if head.get("kind") != self.name:
            self.refuse(path, repr(head.get("kind", "something else")), repr(self.name))
        if head.get("version") != self.version:
            self.refuse(path, f"version {head.get('version')!r}", repr(self.version))
        if head.pop("sha256", None) != _digest(head, arrays) or set(arrays) != set(self.arrays):
            self.refuse(path, "damaged content", "what fits its checksum")
        return head, arrays

    def check_vocabulary(self, path: Path, got: str, vocab_size: int) -> None:
        """Hold the vocabulary that a head names against the model's.

        Raises:
            ConfigError: they differ; both sizes are named.
        """
        if got != str(vocab_size):
            self.refuse(path, f"a vocabulary of {got} tokens", f"{vocab_size}, as the models have")

    def refuse(self, path: Path, got: str, expected: str) -> None:
        """Say what is wrong with a file, and what to do.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"pool {str(path)!r}: got {got}; expected {expected}. {self.help}")

    def _open(self, path: Path) -> tuple[Head, Arrays]:
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                return dict(file.metadata() or {}), {
                    name: file.get_tensor(name)
                    for name in file.keys()  # noqa: SIM118
                }
        except (OSError, safetensors.SafetensorError, TypeError, ValueError, LookupError) as error:
            raise ConfigError(
                f"pool {str(path)!r}: got a file that cannot be read: {error}; expected"
                f" safetensors. {self.help}"
            ) from error


def _digest(head: Head, arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
