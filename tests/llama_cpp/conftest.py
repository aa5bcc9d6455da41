"""Fixtures of a tiny GGUF file, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf")

from paceline.llama_cpp.gguf_model import GgufModel
from tests.support.llama_cpp import tiny_file


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def model(file: Path) -> GgufModel:
    return GgufModel(file, on_gpu=False)
