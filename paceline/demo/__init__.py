"""The embedded model pair, what goes with it, and prompts: everything works without a download.

training.json, head/card.json and store.json say how they were made.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

TARGET = _HERE / "target"
DRAFT = _HERE / "draft"
HEAD = _HERE / "head"  # acceptance head of that draft: see its card
STORE = _HERE / "store"  # token store of what that target says: see store.json
PROMPTS = _HERE / "prompts.jsonl"
NAME = "demo"  # the word for the pair, and for its store, on the command line and in specs


def target_of(name: str) -> str | Path:
    """Where the target of that name is."""
    return TARGET if name == NAME else name


def draft_of(name: str) -> str | Path:
    """Where the draft model of that name is."""
    return DRAFT if name == NAME else name


def draft_name(model: str, draft_model: str | None) -> str | None:
    """The draft model that goes with `model`: the one named; the embedded target brings its own along."""
    return draft_model or (NAME if model == NAME else None)
