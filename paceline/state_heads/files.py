"""Read the folder of a published head: its configuration and safetensors weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import cached_file

from paceline.errors import ConfigError
from paceline.util.files import parse_json

CONFIG, _WEIGHTS, _PICKLES = "config.json", "*.safetensors", ("*.bin", "*.pt", "*.pth")
ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HELP = "Copy the head again from its source."


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """The files of a published draft head.

    Attributes:
        source: Folder or hub id, as the user specified it.
        folder: Local folder that contains the files.
        config: Content of `config.json`.
    """

    source: str
    folder: Path
    config: dict[str, Any]

    @staticmethod
    def find(source: str) -> HeadFiles:
        """Locate the files of a head; download them from the hub if necessary.

        Args:
            source: Folder or hub id.
        Raises:
            ConfigError: The folder does not exist, or it does not contain a head that can be
                loaded safely.
        """
        folder = _folder_of(source)
        path = folder / CONFIG
        try:
            config = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"state head {source!r}: got no readable {CONFIG} ({error}); expected the folder"
                f" of an EAGLE-3 or DFlash head. {_HELP}"
            ) from error
        if not isinstance(config, dict):
            raise ConfigError(
                f"state head {source!r}: got a {CONFIG} that is not a JSON object. {_HELP}"
            )
        if not any(folder.glob(_WEIGHTS)):
            pickled = any(any(folder.glob(pattern)) for pattern in _PICKLES)
            fault = "only pickled weights, which can run code when loaded" if pickled else "none"
            raise ConfigError(
                f"state head {source!r}: got {fault}; expected weights in safetensors files."
                " Choose a head in this format, or convert it with the library speculators."
            )
        return HeadFiles(source, folder, config)

    def tensors(self) -> dict[str, Tensor]:
        """Read all weights of the head; return them by name.

        Raises:
            ConfigError: A file of weights is damaged.
        """
        tensors: dict[str, Tensor] = {}
        try:
            single = self.folder / ONE_FILE  # other files may be shards or training state
            for path in [single] if single.exists() else sorted(self.folder.glob(_WEIGHTS)):
                tensors |= load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise ConfigError(
                f"state head {self.source!r}: got weights that cannot be read ({error}). {_HELP}"
            ) from error
        return tensors

    def error(self, fault: object) -> ConfigError:
        """Build the error for a head whose files are inconsistent."""
        return ConfigError(
            f"state head {self.source!r}: got a head that cannot be loaded ({fault}); expected"
            f" weights that match its {CONFIG}. {_HELP}"
        )


def _folder_of(source: str) -> Path:
    """Return the local folder of a head, downloading the files of a hub id first.

    Raises:
        ConfigError: `source` is neither a folder nor a head on the hub.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    try:
        path = Path(cached_file(source, CONFIG))
        if cached_file(source, ONE_FILE, _raise_exceptions_for_missing_entries=False) is None:
            index = cached_file(source, _INDEX, _raise_exceptions_for_missing_entries=False)
            for name in (
                set(parse_json(Path(index).read_bytes())["weight_map"].values()) if index else ()
            ):
                cached_file(source, name)
    except (OSError, ValueError, LookupError) as error:
        raise ConfigError(
            f"state head {source!r}: the folder does not exist, and no such head was found on the"
            " hub. Check the path or the id."
        ) from error
    return path.parent
