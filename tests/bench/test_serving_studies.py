"""`scripts/serving_studies.py`: second turns, arriving prompts, a long mixed load."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("serving_studies")
    sizes = {"TIMED_TURNS": 1, "STREAM_TOKENS": 96, "INTRUSION_PAUSE_SECONDS": 0.02}
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_every_study_has_a_note(studies: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    words = ["demo", "--dtype", "float32", "--threads", "1", "--limit", "2"]
    words += ["--max-new-tokens", "6", "--drafters", "none,prompt_lookup", "--users", "2"]
    words += ["--turn", "150", "--intruders", "150", "--soak", "0.02", "--json", str(path)]
    turn, gaps, load = studies.main(words)
    reused, recomputed = map(int, re.findall(r"the cache contains (\d+)", turn))
    assert reused >= 150
    assert recomputed < 10
    (ratio,) = re.findall(r"([\d.]+) times the time with reuse", turn)
    assert float(ratio) > 1
    assert "prompts of 150 tokens arrive" in gaps
    assert re.search(r"the server admits [1-9]\d* of these prompts", gaps)
    assert "no answers remained open at the end" in load
    assert json.loads(path.read_text())["notes"] == [turn, gaps, load]


def test_memory_that_grows_is_seen(studies: Any) -> None:
    assert studies.growth([100.0] * 40) == 1
    assert studies.growth([100.0 + 10 * i for i in range(40)]) > 1.5
