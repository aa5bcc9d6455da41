"""Everything here needs vLLM, and is run by `make test-vllm`, in an environment of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.vllm_engine import greedy, random_prompts, save_tiny

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of them; without vLLM they are skipped."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make test-vllm"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Twenty-four, of 5 to 90 tokens."""
    return random_prompts(24)


@pytest.fixture(scope="session")
def references(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers answers to them, greedily: 100 tokens, or up to the end."""
    return greedy(model, prompts, 100)
