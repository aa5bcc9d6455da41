"""Fixtures for tests that need vLLM, which `make test-vllm` runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.vllm_engine import greedy, random_prompts, save_tiny

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of the folder, and skip them without vLLM."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make test-vllm"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Return 24 prompts of 5 to 90 tokens."""
    return random_prompts(24)


@pytest.fixture(scope="session")
def references(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return the greedy outputs of transformers: 100 tokens, or up to the end token."""
    return greedy(model, prompts, 100)
