"""Save the state of a drafter to a versioned, checksummed safetensors file."""

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

from paceline.drafters.shared.settings import StateFileSettings
from paceline.errors import ConfigError
from paceline.util.files import write_atomically

_SETTINGS = StateFileSettings()
Head = dict[str, str]
Arrays = dict[str, NDArray[Any]]
_Read = TypeVar("_Read")


class StateFile:
    """Saves a drafter's state to a file, and loads it; subclasses provide `content`.

    Several processes may share a file. Each save replaces the file with the state of one process,
    so the last save wins.

    Args:
        path: File to load and save.
        cold: Whether to start with an empty state if `load` rejects the file. If true, the drafter
            warns, and the first save renames the rejected file to PATH.refused. If false, `load`
            raises an error.
    Attributes:
        changed: Whether the state may have changed since the last save.
    Raises:
        ConfigError: The folder of `path` does not exist.
    """

    def __init__(self, path: str, cold: bool = False) -> None:
        self.path, self.changed = Path(path), False
        self._cold, self._refused, self._due = cold, False, 0.0
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"pool {path!r}: the folder {str(self.path.parent)!r} does not exist. Create it"
                " first."
            )

    def content(self) -> bytes | None:
        """Return the bytes to write, or None if the state cannot be saved yet."""
        raise NotImplementedError

    def load(self, read: Callable[[Path], _Read]) -> _Read | None:
        """Load the file; return None if it is missing or was rejected.

        Args:
            read: Function that reads and checks a file, and returns its content.
        Raises:
            ConfigError: The file is damaged or invalid, and `cold` is false.
        """
        if not self.path.exists():
            return None
        try:
            return read(self.path)
        except ConfigError as error:
            if not self._cold:
                raise
            self._refused = True
            warnings.warn(f"{error} The drafter starts with an empty pool.", stacklevel=3)
            return None

    def save(self) -> None:
        """Write the file immediately, even if nothing has changed.

        Raises:
            ConfigError: The file cannot be written.
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
        self._due = now + max(_SETTINGS.min_pause_s, _SETTINGS.pauses_per_save * (now - start))

    def save_changes(self, wait: bool = False) -> None:
        """Write the file if the state may have changed; failures only cause a warning.

        Args:
            wait: Whether to postpone the save if the last save was very recent.
        """
        if not self.changed or (wait and time.monotonic() < self._due):
            return
        try:
            self.save()
        except (ConfigError, OSError) as error:
            self._due = time.monotonic() + _SETTINGS.min_pause_s
            warnings.warn(f"pool {str(self.path)!r} was not saved: {error}", stacklevel=2)


@dataclass(frozen=True, slots=True)
class FileKind:
    """The format of a file with a drafter's state.

    Attributes:
        name: Name of the format, as stored in the file's header.
        version: Version of the format.
        arrays: Names of the arrays in the file.
        help: Advice on how to fix a rejected file, for error messages.
    """

    name: str
    version: str
    arrays: tuple[str, ...]
    help: str

    def to_bytes(self, arrays: Arrays, **head: str) -> bytes:
        """Encode arrays in this format, and add the entries `head` to the header."""
        full = {"kind": self.name, "version": self.version, **head}
        content: bytes = save(arrays, {**full, "sha256": _digest(full, arrays)})
        return content

    def read(self, path: Path) -> tuple[Head, Arrays]:
        """Read the header and the arrays of a file, and verify its checksum.

        Raises:
            ConfigError: The file is unreadable or damaged, or its format or version is different.
        """
        head, arrays = self._open(path)
        if head.get("kind") != self.name:
            self.refuse(path, repr(head.get("kind", "something else")), repr(self.name))
        if head.get("version") != self.version:
            self.refuse(path, f"version {head.get('version')!r}", repr(self.version))
        if head.pop("sha256", None) != _digest(head, arrays) or set(arrays) != set(self.arrays):
            self.refuse(path, "damaged content", "content that matches its checksum")
        return head, arrays

    def check_vocabulary(self, path: Path, got: str, vocab_size: int) -> None:
        """Reject a file whose vocabulary size differs from the model's.

        Args:
            path: Path of the file, for the message.
            got: Vocabulary size in the file's header.
            vocab_size: Number of rows in the model's LM head.
        Raises:
            ConfigError: The vocabularies differ; the message gives both sizes.
        """
        if got != str(vocab_size):
            self.refuse(path, f"a vocabulary of {got} tokens", f"{vocab_size}, as the models have")

    def refuse(self, path: Path, got: str, expected: str) -> None:
        """Raise an error that names the file, the problem and the solution.

        Args:
            path: Path of the file.
            got: What the file contains.
            expected: What the file should contain.
        Raises:
            ConfigError: Always.
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
