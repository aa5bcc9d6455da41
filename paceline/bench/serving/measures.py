"""Measure prefix reuse, delays in streamed answers, and memory use under load."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence

from paceline.bench.memory import resident
from paceline.bench.serving.clients import Reply, ask, waited
from paceline.bench.serving.measure_settings import (
    ABORTED_SHARE,
    INTRUSION_PAUSE_SECONDS,
    MEMORY_SAMPLE_SECONDS,
    STREAM_TOKENS,
    TIMED_TURNS,
    TURN_TOKENS,
)
from paceline.bench.serving.prompts import grown
from paceline.bench.serving.settings import ServingConfig
from paceline.bench.serving.studies import Intrusion, SecondTurn, Soak
from paceline.bench.serving.transports import ClientRequest, Transport
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import PLAIN
from paceline.errors import CapacityError
from paceline.llm import LLM
from paceline.report.prompts import Prompt


def second_turn(config: ServingConfig, prompts: Sequence[Prompt], llm: LLM) -> SecondTurn:
    """Time the first token of a second turn, with and without a cached first turn.

    Raises:
        CapacityError: The model's context has no room for the second turn.
    """
    keeping = LLM(
        llm.model.model,
        PLAIN,
        tokenizer=llm.tokenizer,
        max_batch=2,
        keep_prefixes=TIMED_TURNS,
        batch_invariant=config.models.invariance,
    )
    before, room = config.load.turn, llm.max_length - 4 * TURN_TOKENS
    reused, fresh = [], []
    for number in range(TIMED_TURNS):
        index = number % len(prompts)
        text = grown(prompts, index, before, llm.tokenizer, room)
        cached, uncached = (
            _turned(text, (2 * number + side + 1) * before // (2 * TIMED_TURNS + 2))
            for side in (0, 1)
        )
        answer_ids = keeping.generate([cached], SamplingParams(TURN_TOKENS))[0].token_ids
        suffix = [*answer_ids, *grown(prompts, index, None, llm.tokenizer, TURN_TOKENS)]
        reused.append(_first_token(keeping, [*cached, *suffix]))
        fresh.append(_first_token(keeping, [*uncached, *suffix]))
    return SecondTurn(
        before, *(tuple(values) for pairs in (reused, fresh) for values in zip(*pairs, strict=True))
    )


def _turned(ids: list[int], by: int) -> list[int]:
    """Rotate the tokens, so that no cached prefix matches them."""
    return ids[by:] + ids[:by]


def _first_token(llm: LLM, ids: list[int]) -> tuple[float, int]:
    """Return the seconds to the first token, and the number of cached prompt tokens."""
    start = time.perf_counter()
    chunks = llm.stream(ids, SamplingParams(2, ignore_eos=True))
    next(chunks)
    seconds = time.perf_counter() - start
    (completion,) = (chunk.completion for chunk in chunks if chunk.completion is not None)
    return seconds, completion.stats.cached_tokens


def intrusion(
    transport: Transport, config: ServingConfig, prompts: Sequence[Prompt], llm: LLM
) -> Intrusion:
    """Time the gaps between a stream's chunks, with and without arriving long prompts.

    Raises:
        CapacityError: The model's context has no room for the prompts or the stream.
    """
    room = llm.max_length - TURN_TOKENS
    short = grown(prompts, 0, None, llm.tokenizer, room)
    length = min(STREAM_TOKENS, llm.max_length - len(short))
    if length < 2:
        raise CapacityError(
            f"bench: the context of {llm.max_length} tokens has no room for a stream. Leave"
            " intruders out."
        )
    stream = ClientRequest("", short, length, PLAIN, ignore_eos=True)
    long = [
        ClientRequest(
            "",
            grown(prompts, index % len(prompts), config.load.intruders, llm.tokenizer, room, index),
            2,
            PLAIN,
        )
        for index in range(len(prompts))
    ]
    alone = waited(ask(transport, stream))
    before = llm.load.prompt_tokens
    disturbed = waited(_disturbed(transport, stream, long))
    begun = (llm.load.prompt_tokens - before - len(short)) // len(long[0].token_ids)
    return Intrusion(config.load.intruders, begun, _gaps(alone), _gaps(disturbed))


async def _disturbed(
    transport: Transport, stream: ClientRequest, long: Sequence[ClientRequest]
) -> Reply:
    async def intrude() -> None:
        index = 0
        while True:
            await asyncio.sleep(INTRUSION_PAUSE_SECONDS)
            await ask(transport, long[index % len(long)])
            index += 1

    others = asyncio.create_task(intrude())
    try:
        return await ask(transport, stream)
    finally:
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


def soak(
    transport: Transport, requests: Sequence[ClientRequest], users: int, minutes: float, llm: LLM
) -> Soak:
    """Simulate users who abort some requests at random, and record the memory use."""
    return waited(_soak(transport, requests, users, 60 * minutes, llm))


async def _soak(
    transport: Transport, requests: Sequence[ClientRequest], users: int, seconds: float, llm: LLM
) -> Soak:
    start, counts = time.perf_counter(), [0, 0]
    sizes: list[tuple[float, int]] = []

    async def user(number: int) -> None:
        rng = random.Random(number)
        while time.perf_counter() - start < seconds:
            leaves = rng.random() < ABORTED_SHARE
            await ask(transport, rng.choice(requests), rng.randrange(1, 6) if leaves else None)
            counts[leaves] += 1

    async def watch() -> None:
        while True:
            sizes.append((round(time.perf_counter() - start, 1), resident()))
            await asyncio.sleep(min(MEMORY_SAMPLE_SECONDS, seconds / 20))

    watcher = asyncio.create_task(watch())
    async with asyncio.TaskGroup() as group:
        for number in range(users):
            group.create_task(user(number))
    watcher.cancel()
    for _ in range(100):  # the engine frees aborted requests after its current step
        if not llm.model.open_sequences:
            break
        await asyncio.sleep(0.1)
    return Soak(tuple(sizes), counts[0], counts[1], llm.model.open_sequences)


def _gaps(reply: Reply) -> tuple[float, ...]:
    return tuple(after - before for before, after in itertools.pairwise(reply.times))
