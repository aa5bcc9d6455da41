"""Test a server over llama.cpp with 16 requests at a time, some of them abandoned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("openai")

from openai import AsyncOpenAI

from paceline import LLM, SamplingParams
from tests.support.llama_cpp import needs_library
from tests.support.serving import KEY, served

pytestmark = needs_library
DRAFTERS = [None, False, "prompt_lookup", "token_recycling:budget=false", "sssd"]
COUNT = 16


def request_body(number: int) -> dict[str, Any]:
    return {
        "prompt": "abcab" * (1 + number % 5) + "xyz"[number % 3],
        "max_tokens": (1, 9, 24)[number % 3],
        "temperature": (0, 0.8)[number % 2],
        "seed": number,
        "extra_body": {"speculation": DRAFTERS[number % len(DRAFTERS)], "ignore_eos": True},
    }


async def answer_of(client: AsyncOpenAI, request: dict[str, Any], number: int) -> str | None:
    """Return the text of an answer, streamed or not; None if it was abandoned."""
    if number % 4 == 1:
        found = await client.completions.create(model="demo", **request)
        return str(found.choices[0].text)
    stream = await client.completions.create(model="demo", stream=True, **request)
    if number % 4 == 3:
        await anext(aiter(stream))
        await stream.close()
        return None
    return "".join([event.choices[0].text async for event in stream if event.choices])


def test_mixed_requests_equal_plain_decoding(file: Path) -> None:
    llm = LLM(
        str(file),
        "auto",
        engine="llama.cpp",
        device="cpu",
        max_batch=6,
        keep_prefixes=3,
        on_drafter_error="plain",
    )
    requests = [request_body(number) for number in range(COUNT)]

    async def run(url: str) -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            calls = [answer_of(client, each, number) for number, each in enumerate(requests)]
            return list(await asyncio.gather(*calls))

    with served(llm, max_batch=6) as server:
        found = asyncio.run(run(server.url))
        for _ in range(100):
            if not llm.load.running:
                break
            asyncio.run(asyncio.sleep(0.05))
    assert (llm.load.running, llm.load.waiting, llm.load.drafter_failures) == (0, 0, 0)
    assert llm.model.open_sequences == llm.load.kept_requests <= 3
    for text, request in zip(found, requests, strict=True):
        params = SamplingParams(
            request["max_tokens"],
            temperature=request["temperature"],
            seed=request["seed"],
            ignore_eos=True,
            speculation="none",
        )
        assert text is None or text == llm.generate([request["prompt"]], params)[0].text
