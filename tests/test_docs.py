"""Every Python snippet of README and docs runs as it stands."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path

import pytest

from paceline.drafters import REGISTRY
from tests.support import models

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code: str) -> None:
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_readme_lists_every_drafter_with_its_options() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    for name, entry in REGISTRY.items():
        (line,) = [line for line in lines if line.startswith(f"| `{name}` |")]
        assert re.findall(r"`(\w+)`", line.split("|")[-2]) == [
            option.name for option in dataclasses.fields(entry.load().Options)
        ]


def test_the_drawn_window_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    drawing = importlib.import_module("draw_window").drawing()
    assert drawing in (ROOT / "docs" / "methods" / "lookahead.md").read_text(encoding="utf-8")


def test_figures_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    for page, text in importlib.import_module("update_benchmarks").pages():
        assert page.read_text(encoding="utf-8") == text, (
            f"{page.name} is stale; run scripts/update_benchmarks.py"
        )


def test_every_result_is_shown_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    shown = importlib.import_module("update_benchmarks").shown_results()
    results = list((ROOT / "docs" / "results").iterdir())
    assert {result.name for result in results} <= {f"{name}.json" for name in shown}
    assert sum(result.stat().st_size for result in results) < 2_000_000
    for result in results:
        assert not {"calls", "cells"} & json.loads(result.read_text(encoding="utf-8")).keys()


def test_architectures_claimed_are_those_tested() -> None:
    trees, chains = (
        len({name for name, _ in cases}) for cases in (models.CASES, models.CHAIN_CASES)
    )
    assert f"[{trees + chains} architectures are" in (ROOT / "README.md").read_text()
    assert (
        f"over {trees + chains} architectures ({trees} with trees, {chains} as chains)"
        in (ROOT / "docs" / "concepts" / "losslessness.md").read_text()
    )


def test_glossary_words_are_there() -> None:
    glossary = (ROOT / "docs" / "concepts" / "glossary.md").read_text()
    assert all(
        f"| {word} |" in glossary
        for word in (
            "target",
            "draft token",
            "draft tree",
            "accepted",
            "bonus",
            "pending",
            "forward pass",
            "chunked prefill",
            "prefix caching",
            "preemption",
            "batch invariance",
        )
    )
