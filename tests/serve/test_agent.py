"""Test `scripts/agent_soak.py`: an agent that works on toy repositories."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from tests.support.serving import served

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_an_agent_works_on_repositories(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams equal whole calls, and transcripts do not depend on the drafter."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    soak: Any = importlib.import_module("agent_soak")
    with served(llm, served_name=("model",)) as server, server.client() as client:
        transcripts = soak.check(client, 2, ("none", "prompt_lookup"))
        assert server.open_work() == 0
    assert len(transcripts) == 6
    roles = ["user", *["assistant", "tool"] * len(soak.TURNS)]
    assert all([message["role"] for message in each["messages"]] == roles for each in transcripts)
