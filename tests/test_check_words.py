"""Test that the wording check finds banned style in Python files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GOOD = '''"""Count tokens of a text."""

# The engine reads the counter after each step.


def count(text: str) -> int:
    """Return the number of tokens in a text.

    Args:
        text: Text to count.
    """
    return len(text.split())
'''


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("check_words").check


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("Count tokens of a text.", "What a text has.", "starts with 'What'"),
        ("Count tokens of a text.", "Tokens.", "of 1 words"),
        ("Count tokens of a text.", f"Count {'many ' * 16}tokens.", "characters"),
        ("Text to count.", "Text that goes on.", "banned: 'goes on'"),
        ("reads the counter", "is told the counter", "banned: 'is told'"),
        ("Text to count.", f"Text to count{' and to count' * 10}.", "sentence of"),
    ],
)
def test_each_fault_is_found(check: Any, tmp_path: Path, old: str, new: str, fault: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(GOOD)
    assert check(path) == []
    path.write_text(GOOD.replace(old, new))
    assert fault in " ".join(check(path))
