"""Resolve the name of a model: a directory, hub id, GGUF file or built-in name."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import PreTrainedModel

from paceline import demo
from paceline.model import gguf

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def missing_source(source: str | Path) -> str:
    """Return why a path has no model, as the end of an error; "" if it has one.

    The result is also "" if the name may be a hub id or a built-in name.
    """
    is_file = str(source).endswith(".gguf")
    if (source != "" and Path(source).exists()) or (
        isinstance(source, str) and not is_file and _HUB_ID.fullmatch(source)
    ):
        return ""
    return f"there is no such {'file' if is_file else 'folder'}. Check the path."


def checkpoint_source(source: str | Path | PreTrainedModel) -> str:
    """Return a model's directory or hub id, converting a GGUF file first if needed."""
    path = demo.target_of(source) if isinstance(source, str) else source
    return (
        str(gguf.unpacked(path))
        if isinstance(path, str | Path) and gguf.is_gguf(path)
        else str(path)
    )
