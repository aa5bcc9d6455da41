"""A recording on disk: a folder of shards, one per batch of prompts, each written whole or not at
all.

`record.json` says how it is made; an interrupted recording continues under the same settings only.
`prompts.safetensors` has the prompts' token ids; `shard-N.safetensors` has what happened at the
drafted positions of batch N.
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
from paceline.util.files import parse_json, write_atomically

_KIND, _VERSION = "paceline head recording", 2
_SETTINGS, _PROMPTS = "record.json", "prompts.safetensors"
_COLUMNS = ("hidden", "log_probs", "entropies", "labels", "top_probs", "prompts")


@dataclass(frozen=True, slots=True)
class Recording:
    """Drafted tokens, and how likely the target was to accept each.

    Attributes:
        settings: how it was made; "cut", where it is there: how many of the prompts were too long,
            and have lost their middle.
        hidden: bfloat16 [n, hidden], the draft's last hidden state computed from the token.
        log_probs: float32 [n], in the distribution it was drawn from, as
            `AcceptanceHead.confidences` takes them.
        entropies: float32 [n], of that distribution, in nats.
        labels: float32 [n], acceptance probability min(1, target/draft); greedy: 1 where the target
            says the same, else 0.
        top_probs: float32 [n], the most likely token's probability in that distribution.
        prompts: int32 [n], which prompt it belongs to.
        names: `prompt_name` of each prompt.
        prompt_ids: token ids of each prompt.
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
        """Return the part that belongs to the prompts of those names."""
        wanted = torch.tensor([name in names for name in self.names], dtype=torch.bool)[
            self.prompts.long()
        ]
        return dataclasses.replace(self, **{name: getattr(self, name)[wanted] for name in _COLUMNS})


class RecordingFolder:
    """The folder while it is filled.

    Args:
        path: the folder.
        settings: how the recording is made.
        prompts: token ids of each prompt.
    Raises:
        ConfigError: it holds something else, or a recording of other settings.
    """

    def __init__(
        self, path: str | Path, settings: dict[str, Any], prompts: Sequence[Sequence[int]]
    ) -> None:
        self.path = Path(path)
        wanted = {"kind": _KIND, "version": _VERSION, "prompts": _digest(prompts), **settings}
        if not (self.path / _SETTINGS).exists():
            if self.path.exists() and any(self.path.glob("shard-*.safetensors")):
                raise ConfigError(
                    f"recording {str(path)!r}: got shards but no {_SETTINGS}; expected both or"
                    " neither. Name another folder."
                )
            ids = torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int32)
            lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
            write_atomically(self.path / _PROMPTS, save({"ids": ids, "lengths": lengths}))
            write_atomically(self.path / _SETTINGS, (json.dumps(wanted, indent=1) + "\n").encode())
        found = _settings(self.path)
        for key in wanted.keys() | found.keys():
            if found.get(key) != wanted.get(key):
                raise ConfigError(
                    f"recording {str(path)!r}: got {key} {wanted.get(key)!r}; expected"
                    f" {found.get(key)!r}, as it was begun. Continue with the same settings, or"
                    " name another folder."
                )
        for left in self.path.glob("*.tmp"):  # of a process that was killed while it wrote
            left.unlink(missing_ok=True)

    def has(self, batch: int) -> bool:
        """Whether the shard of that batch is there."""
        return _shard(self.path, batch).exists()

    def write(self, batch: int, columns: dict[str, Tensor]) -> None:
        """Store what happened in a batch; tensors as in `Recording`."""
        write_atomically(
            _shard(self.path, batch), save({name: columns[name].contiguous() for name in _COLUMNS})
        )


def read_recording(path: str | Path) -> Recording:
    """Read the whole recording of a folder.

    Raises:
        ConfigError: none is there, it is not finished, or a file of it is damaged.
    """
    folder = Path(path)
    settings = _settings(folder)
    count = settings["batches"]
    missing = [batch for batch in range(count) if not _shard(folder, batch).exists()]
    if missing:
        raise ConfigError(
            f"recording {str(path)!r}: got {count - len(missing)} of its {count} shards; expected"
            " all. Give the same command (`paceline head record`) again: it continues where it"
            " was."
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
    """Return eight hexadecimal digits that stand for a prompt, by its token ids: the same in
    every recording.
    """
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
            " recording. Make one: paceline head record."
        ) from error
    found = (
        (settings.get("kind"), settings.get("version"))
        if isinstance(settings, dict)
        else (None, None)
    )
    if found != (_KIND, _VERSION):
        raise ConfigError(
            f"recording {str(folder)!r}: got {found}; expected {(_KIND, _VERSION)}. Record anew."
        )
    return dict(settings)


def _load(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
        return {name: tensors[name] for name in names}
    except (OSError, safetensors.SafetensorError, ValueError, LookupError) as error:
        raise ConfigError(
            f"recording: got {str(path)!r}, which cannot be read: {error}; expected a shard. Delete"
            " that file and give the same `paceline head record` command again."
        ) from error
