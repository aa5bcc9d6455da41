"""Test 64 requests at a time: outputs equal those of single requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from paceline import LLM, SamplingParams
from tests.support.serving import KEY, Served, served
from tests.support.shared import Pair

COUNT = 64
DRAFTERS = [
    None,
    False,
    "prompt_lookup:budget=false",
    "lookahead:window=3,ngram=3,budget=false",
    "pia",
]
DRAFTERS += ["draft_model:max_draft_tokens=3,verification=follow"]
LENGTHS = [1, 7, 12, 24]


@pytest.fixture(scope="module")
def server(tiny: LLM) -> Iterator[Served]:
    with served(tiny, max_batch=16) as one:
        yield one


def fields_of(number: int, prompts: list[list[int]]) -> dict[str, Any]:
    """Return the fields of a request."""
    options = {"speculation": DRAFTERS[number % len(DRAFTERS)], "ignore_eos": number % 3 == 0}
    return {
        "prompt": prompts[number % len(prompts)],
        "max_tokens": LENGTHS[number % len(LENGTHS)],
        "extra_body": options,
        "temperature": 0.0 if number % 2 else 0.8,
        "seed": number,
    }


def alone(llm: LLM, request: dict[str, Any]) -> str:
    params = SamplingParams(
        request["max_tokens"],
        request["temperature"],
        seed=request["seed"],
        speculation="none",
        ignore_eos=request["extra_body"]["ignore_eos"],
    )
    return llm.generate([request["prompt"]], params)[0].text


async def whole(client: AsyncOpenAI, request: dict[str, Any]) -> str:
    found = await client.completions.create(model="demo", **request)
    return str(found.choices[0].text)


async def streamed(client: AsyncOpenAI, request: dict[str, Any]) -> str:
    return "".join(
        [
            event.choices[0].text
            async for event in await client.completions.create(model="demo", stream=True, **request)
        ]
    )


async def disconnect(client: AsyncOpenAI, request: dict[str, Any]) -> None:
    """Close the stream early, at once or after one event."""
    stream = await client.completions.create(
        model="demo", stream=True, **{**request, "max_tokens": 150}
    )
    if request["seed"] % 2:
        await anext(aiter(stream))
    await stream.close()


def test_concurrent_outputs_equal_single_requests(server: Served, tiny: LLM, pair: Pair) -> None:
    requests = [fields_of(number, pair.prompts) for number in range(COUNT)]
    ways = [whole, streamed, whole, disconnect]
    random.Random(0).shuffle(requests)

    async def run() -> list[str | None]:
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60
        ) as client:
            return list(
                await asyncio.gather(
                    *[ways[index % 4](client, one) for index, one in enumerate(requests)]
                )
            )

    found = asyncio.run(run())
    assert server.open_work() == 0
    for index, request in enumerate(requests):
        if ways[index % 4] is not disconnect:
            assert found[index] == alone(tiny, request), request
