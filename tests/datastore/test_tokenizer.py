"""Test that a datastore of another tokenizer is refused, with both fingerprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, datastore
from paceline.drafters import REGISTRY, create
from paceline.errors import DatastoreError
from tests.support.cli import call
from tests.support.shared import Pair
from tests.support.stores import store

OTHER = f"sha256:{'0' * 64}"
WITH_STORE = [
    name for name, entry in REGISTRY.items() if hasattr(entry.load().Options, "datastore")
]


def build_datastore(path: Path, tokenizer: Any) -> str:
    datastore.build(path, [[1, 2, 3, 4]], 256, tokenizer=tokenizer, workers=1)
    return str(path)


@pytest.mark.parametrize("name", WITH_STORE)
def test_engine_refuses_another_tokenizer(
    pair: Pair, tokenizer: Any, tmp_path: Path, name: str
) -> None:
    path = build_datastore(tmp_path / "s", OTHER)
    wanted = datastore.fingerprint_of(tokenizer)
    for drafter in (f"{name}:datastore={path}", create(name, datastore=path)):
        with pytest.raises(
            DatastoreError, match=rf"{path}.*{OTHER}.*{wanted}.*datastore build"
        ) as error:
            LLM(pair.target, drafter=drafter, tokenizer=tokenizer)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", WITH_STORE)
def test_unknown_tokenizers_are_accepted(
    pair: Pair, tokenizer: Any, tmp_path: Path, name: str
) -> None:
    LLM(
        pair.target,
        drafter=f"{name}:datastore={build_datastore(tmp_path / 'same', tokenizer)}",
        tokenizer=tokenizer,
    )
    LLM(pair.target, drafter=f"{name}:datastore={store(tmp_path / 'ids')}", tokenizer=tokenizer)
    # the prompts' tokenizer is unknown
    LLM(pair.target, drafter=f"{name}:datastore={build_datastore(tmp_path / 'other', OTHER)}")


def test_replay_refuses_another_tokenizer(tmp_path: Path) -> None:
    path = build_datastore(tmp_path / "s", OTHER)
    traces = tmp_path / "traces.jsonl"
    traces.write_text(json.dumps({"prompt": "Hello, ", "output": "Hello, Hello"}) + "\n")
    with pytest.raises(DatastoreError, match=OTHER):
        call("replay", str(traces), "--datastore", path, "--tokenizer", "demo")
