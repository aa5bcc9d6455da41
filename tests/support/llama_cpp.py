"""Skip tests of the llama.cpp engine where no library is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HAS_LIBRARY = any(importlib.util.find_spec(name) for name in ("xllamacpp", "llama_cpp"))
NO_LIBRARY = "no llama.cpp library: pip install '.[llama-cpp]'"
needs_library = pytest.mark.skipif(not HAS_LIBRARY, reason=NO_LIBRARY)


def tiny_file(folder: Path) -> Path:
    """Write a tiny model whose results do not depend on the number of rows."""
    from tests.support.gguf import write_gguf  # gguf is an optional package

    return write_gguf(folder / "tiny.gguf", "Q8_0")
