"""The embedded model pair and prompts: everything works without a download. See training.json for how they were made."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

TARGET = _HERE / "target"
DRAFT = _HERE / "draft"
HEAD = _HERE / "head"  # acceptance head of that draft: see its card
PROMPTS = _HERE / "prompts.jsonl"
NAME = "demo"  # the word for the pair on the command line
