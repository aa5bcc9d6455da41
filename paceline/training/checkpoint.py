"""Store the state of a training run in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save
from torch import Tensor

from paceline.errors import ConfigError
from paceline.util.files import digest_of, write_atomically


def require_same_settings(folder: Path, settings: dict[str, Any], stored: dict[str, Any]) -> None:
    """Check that a resumed training run has its original settings.

    Args:
        folder: Folder of the training run, for the error message.
        settings: Settings of the resumed run.
        stored: Settings with which the run started.
    Raises:
        ConfigError: A setting differs.
    """
    for name in settings | stored:
        if stored.get(name) != settings.get(name):
            raise ConfigError(
                f"folder {str(folder)!r}: {name}: got {settings.get(name)!r}; expected"
                f" {stored.get(name)!r}, as at the start of the run. Continue with the same"
                " settings, or name another folder."
            )


class CheckpointFile:
    """An atomically written checkpoint file with tensors and JSON values.

    The file's header states the kind, the version and a checksum of the JSON values.

    Args:
        path: Path of the file.
        kind: Name that distinguishes this kind of checkpoint from others.
        version: Format version of the checkpoint's content.
    """

    def __init__(self, path: Path, kind: str, version: int) -> None:
        self.path = path
        self._header = {"kind": kind, "version": str(version)}

    @property
    def exists(self) -> bool:
        """Return whether the file exists."""
        return self.path.exists()

    def save(self, values: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Replace the content of the checkpoint.

        Args:
            values: JSON values by name.
            tensors: Tensors by name, in named groups.
        Raises:
            ConfigError: The file cannot be written.
        """
        header = self._header | {name: json.dumps(value) for name, value in values.items()}
        header["check"] = digest_of(header)
        flat = {
            f"{group}.{name}": tensor
            for group, members in tensors.items()
            for name, tensor in members.items()
        }
        write_atomically(self.path, save(flat, header))

    def value(self, name: str) -> Any:
        """Return the JSON value with the given name.

        Raises:
            ConfigError: The file is damaged.
        """
        return json.loads(self._open().metadata()[name])

    def tensors(self, group: str) -> dict[str, Tensor]:
        """Return the tensors of one group, by name.

        Raises:
            ConfigError: The file is damaged.
        """
        file = self._open()
        prefix = f"{group}."
        return {
            name.removeprefix(prefix): file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118  (no mapping)
            if name.startswith(prefix)
        }

    def delete(self) -> None:
        """Remove the file if it exists."""
        self.path.unlink(missing_ok=True)

    def _open(self) -> Any:
        try:
            file: Any = safetensors.safe_open(self.path, "pt")
            header = dict(file.metadata() or {})
            checksum = header.pop("check", "")
            sound = checksum == digest_of(header) and self._header.items() <= header.items()
        except (OSError, safetensors.SafetensorError):
            sound = False
        if not sound:
            raise ConfigError(
                f"the checkpoint {str(self.path)!r} is damaged, or has a different version."
                " Delete it to start the training again."
            )
        return file
