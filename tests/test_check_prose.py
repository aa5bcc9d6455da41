"""Test that the prose check finds banned style in pages and help texts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GOOD = """# Serve a model

You can start a server with one command. See [the guide](server.md) for its options.

```sh
paceline serve MODEL   # likewise 0a1b2c3
```

| option | effect |
|---|---|
| `--port` | Port of the server. |

<!-- table of speed -->
| | so many tokens as |
|---|---|
| auto | 1 2 3 4 5 6 7 8 9 10 11 12 13 14 |
<!-- end of table -->

1. The first step ends with AVX2. The second step starts.
"""


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("check_prose")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("with one command", f"with {'one more ' * 15}command", "3: sentence of 37 words"),
        ("with one command", "likewise", "3: banned: 'likewise'"),
        ("with one command", "in 0a1b2c3", "3: commit 0a1b2c3"),
        ("with one command", "on 1, 2, 3, 4 or 5 ports", "3: 5 numbers in a paragraph"),
        ("You can start", "Where you can start", "3: sentence starts with 'Where'"),
        ("[the guide]", "[page]", "3: link with the text 'page'"),
        ("Port of the server.", "of the port " * 5, "11: table cell of 15 words"),
        ("| option |", "| |", "9: empty table heading"),
        ("The second step", f"The second {'long ' * 30}step", "19: sentence of"),
    ],
)
def test_each_fault_is_found(prose: Any, tmp_path: Path, old: str, new: str, fault: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(GOOD)
    assert prose.check(path) == []
    path.write_text(GOOD.replace(old, new, 1))
    (found,) = prose.check(path)
    assert f"{path}:{fault}" in found


def test_a_question_may_start_with_a_question_word(prose: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("What do you want to do?\n")
    assert prose.check(path) == []


def test_faults_of_help_texts_are_found(prose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        ("serve", "", "Serve " + "a model " * 7),
        ("serve", "--port", "Port that is told to clients."),
        ("serve", "--host", "Address of the server."),
    ]
    monkeypatch.setattr("docs_command_line.help_texts", lambda: texts)
    assert prose.check_help() == [
        "paceline serve: summary of 15 words",
        "paceline serve --port: banned: 'is told'",
    ]


def test_every_command_and_option_has_help(prose: Any) -> None:
    texts = importlib.import_module("docs_command_line").help_texts()
    missing = [(command, name) for command, name, text in texts if not text]
    assert missing == []
