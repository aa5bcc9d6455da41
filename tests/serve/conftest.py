"""One server for the tests of a module: a real uvicorn in a thread, on the embedded target, and the official client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from paceline import LLM
from tests.support.serving import Served, served


@pytest.fixture(scope="session")
def llm() -> LLM:
    return LLM("demo", "prompt_lookup", dtype="float32", max_batch=8)


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Served]:
    with served(llm) as one:
        yield one
        assert one.left_over() == 0


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[OpenAI]:
    with server.client() as one:
        yield one
