"""Checkpoints, tokenizers and devices that cannot be used: one error that names them, never a traceback or random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.loading import load_model
from paceline.errors import ConfigError
from tests.conftest import DATA

WEIGHTS = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the small target."""
    return Path(shutil.copytree(DATA / "tiny_target", tmp_path / "model"))


@pytest.mark.parametrize("content", [b"", b"garbage " * 100, 100, 0.5], ids=["empty", "garbage", "no header", "half"])
def test_damaged_weights(checkpoint: Path, content: bytes | float) -> None:
    whole = (checkpoint / WEIGHTS).read_bytes()
    if not isinstance(content, bytes):
        content = whole[: content if isinstance(content, int) else int(content * len(whole))]
    (checkpoint / WEIGHTS).write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot load .*model.*SafetensorError"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_attention_heads": 7}, "not a multiple"),
        ({"hidden_size": 128}, r"weights that do not fit its config, as \S+ is of shape \[.*\], not \["),
        ({"num_hidden_layers": 3}, r"weights that do not fit its config, as model.layers.2.\S+ is missing"),
        ({"num_hidden_layers": -1}, "names no layers"),
        ({"num_hidden_layers": "two"}, "expected int"),
        ({"model_type": "nobody_knows"}, "nobody_knows"),
        (None, "not a valid JSON"),
    ],
)
def test_configs_that_do_not_fit(checkpoint: Path, changed: dict[str, Any] | None, message: str) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text("{" if changed is None else json.dumps({**config, **changed}))
    with pytest.raises(ConfigError, match=message):
        load_model(checkpoint)


@pytest.mark.parametrize("device", ["foo", "cpu:x", "meta", "cuda:99", "mps"])
def test_devices_that_are_not_there(device: str) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is there")
    with pytest.raises(ConfigError, match=rf"device: got '{device}'.*expected one of: auto, cpu"):
        load_model(DATA / "tiny_target", device=device)
