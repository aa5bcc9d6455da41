"""Fixtures for the server: uvicorn in a thread, and the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline import LLM, demo
from tests.support.serving import Served, served
from tests.support.shared import Pair


@pytest.fixture(scope="session")
def llm() -> LLM:
    return LLM(demo.TARGET, "prompt_lookup", draft_model=demo.DRAFT, dtype="float32", max_batch=8)


@pytest.fixture(scope="session")
def tiny(pair: Pair, tokenizer: Any) -> LLM:
    """Return a fast engine with random weights, for tests that do not depend on texts."""
    return LLM(
        pair.target,
        "prompt_lookup:budget=false",
        draft_model=pair.draft,
        tokenizer=tokenizer,
        max_batch=16,
    )


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Served]:
    with served(llm) as one:
        yield one
        assert one.open_work() == 0


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[Any]:
    with server.client() as one:
        yield one
