"""Store the training data of acceptance heads (recordings) in folders of shards.

A recording consists of draft tokens, each with the probability that the target accepts the token.
`record.json` contains the settings; an interrupted recording resumes only with the same settings.
`prompts.safetensors` contains the token ids of the prompts. `shard-N.safetensors` contains the
draft tokens for batch N of the prompts. Every file is written atomically.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from paceline.errors import ConfigError
from paceline.training.checkpoint import require_same_settings
from paceline.util.files import parse_json, write_atomically

_KIND, _VERSION = "paceline head recording", 2
_SETTINGS, _PROMPTS = "record.json", "prompts.safetensors"
_COLUMNS = ("hidden", "log_probs", "entropies", "labels", "top_probs", "prompts")


@dataclass(frozen=True, slots=True)
class Recording:
    """Draft tokens, each with the probability that the target accepts it.

    Attributes:
        settings: Settings of the recording. The entry "cut", if present, is the number of prompts
            that were too long and were therefore truncated in the middle.
        hidden: The draft model's last hidden state at the token, bfloat16 [n, hidden].
        log_probs: Log-probability of the token in the draft distribution from which it was sampled,
            float32 [n].
        entropies: Entropy of the draft distribution, in nats, float32 [n].
        labels: Acceptance probability of the token, float32 [n]: min(1, target probability / draft
            probability). For greedy decoding, 1 if the target chooses the same token, otherwise 0.
        top_probs: Highest probability in the draft distribution, float32 [n].
        prompts: Index of each token's prompt, int32 [n].
        names: Hexadecimal digits that identify each prompt, from `prompt_name`.
        prompt_ids: Token ids of each prompt.
    """

    settings: dict[str, Any]
    hidden: Tensor
    log_probs: Tensor
    entropies: Tensor
    labels: Tensor
    top_probs: Tensor
    prompts: Tensor
    names: list[str]
    prompt_ids: list[list[int]]

    def __len__(self) -> int:
        return len(self.labels)

    def of_prompts(self, names: set[str]) -> Recording:
        """Return a recording with only the draft tokens of the named prompts."""
        selected = torch.tensor([name in names for name in self.names], dtype=torch.bool)
        rows = selected[self.prompts.long()]
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})


class RecordingFolder:
    """Writes a recording (training data) to a folder, one shard per batch.

    Args:
        path: Folder of the recording.
        settings: Settings of the recording.
        prompts: Token ids of each prompt.
    Raises:
        ConfigError: The folder contains something other than a recording, or a recording with
            different settings.
    """

    def __init__(
        self, path: str | Path, settings: dict[str, Any], prompts: Sequence[Sequence[int]]
    ) -> None:
        self.path = Path(path)
        settings = {"kind": _KIND, "version": _VERSION, "prompts": _digest(prompts), **settings}
        if not (self.path / _SETTINGS).exists():
            if self.path.exists() and any(self.path.glob("shard-*.safetensors")):
                raise ConfigError(
                    f"recording {str(path)!r}: got shards but no {_SETTINGS}; expected both or"
                    " neither. Name another folder."
                )
            ids = torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int32)
            lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
            write_atomically(self.path / _PROMPTS, save({"ids": ids, "lengths": lengths}))
            content = json.dumps(settings, indent=1) + "\n"
            write_atomically(self.path / _SETTINGS, content.encode())
        require_same_settings(self.path, settings, _settings(self.path))
        for partial in self.path.glob("*.tmp"):  # a process was killed while writing
            partial.unlink(missing_ok=True)

    def has(self, batch: int) -> bool:
        """Return whether the shard of a batch has been written."""
        return _shard(self.path, batch).exists()

    def write(self, batch: int, columns: dict[str, Tensor]) -> None:
        """Write the draft tokens of a batch as a shard of the recording.

        Args:
            batch: Index of the batch.
            columns: Tensors by name, as in `Recording`.
        """
        content = save({name: columns[name].contiguous() for name in _COLUMNS})
        write_atomically(_shard(self.path, batch), content)


def read_recording(path: str | Path) -> Recording:
    """Read the recording in a folder.

    Raises:
        ConfigError: The recording is missing or incomplete, or a file is damaged.
    """
    folder = Path(path)
    settings = _settings(folder)
    count = settings["batches"]
    missing = sum(not _shard(folder, batch).exists() for batch in range(count))
    if missing:
        raise ConfigError(
            f"recording {str(path)!r}: got {count - missing} of its {count} shards; expected all."
            " Run the same command (`paceline head record`) again to complete it."
        )
    shards = [_load(_shard(folder, batch), _COLUMNS) for batch in range(count)]
    stored = _load(folder / _PROMPTS, ("ids", "lengths"))
    flat, ends = stored["ids"].tolist(), accumulate(stored["lengths"].tolist(), initial=0)
    prompts = [flat[start:end] for start, end in pairwise(ends)]
    columns = {name: torch.cat([shard[name] for shard in shards]) for name in _COLUMNS}
    return Recording(
        settings, **columns, names=[prompt_name(ids) for ids in prompts], prompt_ids=prompts
    )


def prompt_name(token_ids: Sequence[int]) -> str:
    """Return eight hexadecimal digits that identify a prompt across recordings."""
    return hashlib.sha256(np.asarray(token_ids, dtype=np.int32).tobytes()).hexdigest()[:8]


def _digest(prompts: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256("".join(prompt_name(prompt) for prompt in prompts).encode()).hexdigest()


def _shard(folder: Path, batch: int) -> Path:
    return folder / f"shard-{batch:05}.safetensors"


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings = parse_json((folder / _SETTINGS).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"recording {str(folder)!r}: got a {_SETTINGS} that cannot be read: {error}; expected a"
            " recording. Make one with `paceline head record`."
        ) from error
    settings = dict(settings) if isinstance(settings, dict) else {}
    header = (settings.get("kind"), settings.get("version"))
    if header != (_KIND, _VERSION):
        raise ConfigError(
            f"recording {str(folder)!r}: got {header}; expected {(_KIND, _VERSION)}. Record again."
        )
    return settings


def _load(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
        return {name: tensors[name] for name in names}
    except (OSError, safetensors.SafetensorError, ValueError, LookupError) as error:
        raise ConfigError(
            f"\0recording\0: got {str(path)!r}, which cannot be read: {error}; expected a shard."
            " Delete that file and run the same `paceline head record` command again."
        ) from error
