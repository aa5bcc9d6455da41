"""Test SmolLM2 behind a server, in bfloat16, with 64 requests at a time.

Each answer must equal the same request alone, token for token.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from paceline import LLM, SamplingParams, grammars
from tests.support.real import NEEDS_REAL, PROMPTS
from tests.support.serving import KEY, served

# Takes minutes, and equal bits depend on the processor's kernels.
pytestmark = [*NEEDS_REAL, pytest.mark.slow, pytest.mark.processor]
COUNT = 64
DRAFTERS = [
    None,
    False,
    "prompt_lookup",
    "lookahead",
    "sssd:max_nodes=8",
    "token_recycling:max_nodes=8,budget=false",
    "pia:max_nodes=8",
]
LENGTHS = [1, 9, 16, 24]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}},
    "required": ["name"],
}


def request_body(number: int, prompts: list[str]) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "speculation": DRAFTERS[number % len(DRAFTERS)],
        "ignore_eos": number % 3 == 0,
        "priority": number % 2,
    }
    if number % 8 == 5:
        extra |= {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "one", "schema": SCHEMA},
            },
            "ignore_eos": False,
        }
    return {
        "prompt": prompts[number % len(prompts)],
        "max_tokens": LENGTHS[number % len(LENGTHS)],
        "extra_body": extra,
    }


def answer_alone(llm: LLM, request: dict[str, Any]) -> str:
    extra = request["extra_body"]
    grammar = (
        [grammars.json_schema(llm.tokenizer, SCHEMA, llm.eos_token_ids)]
        if "response_format" in extra
        else []
    )
    params = SamplingParams(
        request["max_tokens"],
        speculation="none",
        ignore_eos=extra["ignore_eos"],
        logits_processors=grammar,
    )
    return llm.generate([request["prompt"]], params)[0].text


async def answer_of(client: AsyncOpenAI, request: dict[str, Any], number: int) -> str | None:
    """Return the text of an answer, streamed or not; None if the stream was closed early."""
    if number % 4 == 1:
        found = await client.completions.create(model="demo", temperature=0, **request)
        return str(found.choices[0].text)
    stream = await client.completions.create(model="demo", temperature=0, stream=True, **request)
    if number % 4 == 3:
        await anext(aiter(stream))
        await stream.close()
        return None
    return "".join([event.choices[0].text async for event in stream if event.choices])


def test_concurrent_outputs_equal_single_requests() -> None:
    prompts = [
        json.loads(line)["text"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()
    ][:24]
    llm = LLM(
        "smollm2",
        "auto",
        dtype="bfloat16",
        batch_invariant=True,
        max_batch=16,
        keep_prefixes=4,
        on_drafter_error="plain",
    )
    requests = [request_body(number, prompts) for number in range(COUNT)]

    async def run(url: str) -> list[str | None]:
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=900
        ) as client:
            return list(
                await asyncio.gather(
                    *[answer_of(client, one, number) for number, one in enumerate(requests)]
                )
            )

    with served(llm, max_batch=16, timeout=900) as server:
        found = asyncio.run(run(server.url))
        for _ in range(100):
            if not llm.load.running:
                break
            asyncio.run(asyncio.sleep(0.1))
    assert (llm.load.running, llm.load.waiting, llm.load.drafter_failures) == (0, 0, 0)
    assert llm.model.open_sequences == llm.load.kept_requests <= 4
    assert llm.load.accepted_tokens > 0
    for text, request in zip(found, requests, strict=True):
        assert text is None or text == answer_alone(llm, request), request
