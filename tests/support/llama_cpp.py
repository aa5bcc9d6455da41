"""Tests of the llama.cpp engine: skipped where no library is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HAS_LIBRARY = any(importlib.util.find_spec(name) for name in ("xllamacpp", "llama_cpp"))
NO_LIBRARY = "no llama.cpp library: pip install 'paceline[llama-cpp]'"
needs_library = pytest.mark.skipif(not HAS_LIBRARY, reason=NO_LIBRARY)


def tiny_file(folder: Path) -> Path:
    """A tiny model in a format for which every number of rows gives the same bits."""
    from tests.support.gguf import write_gguf  # an optional package

    return write_gguf(folder / "tiny.gguf", "Q8_0")
