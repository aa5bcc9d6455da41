"""Simulate clients that wait for each answer, or whose requests arrive at random."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from paceline.bench.serving.transports import ClientRequest, Transport

T = TypeVar("T")


@dataclass(slots=True)
class Reply:
    """The answer to a request, as received by its client.

    Attributes:
        request: Request that was sent.
        began: Time at which the client sent the request, from `time.perf_counter`.
        times: Arrival times of the chunks.
        content: Answer, as token ids or as text, depending on the transport. Only contents from the
            same transport can be compared.
        tokens: Number of tokens in the answer.
    """

    request: ClientRequest
    began: float
    times: list[float] = field(default_factory=list)
    content: tuple[int, ...] | str | None = None
    tokens: int = 0


def waited(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop, and return its result.

    Raises:
        BaseException: The first error in any task.
    """
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from errors


async def ask(transport: Transport, request: ClientRequest, max_chunks: int | None = None) -> Reply:
    """Send a request and wait for the answer; abort after `max_chunks` chunks."""
    reply = Reply(request, time.perf_counter())
    async with aclosing(transport.pieces(request)) as chunks:
        async for chunk in chunks:
            reply.tokens += chunk.tokens
            if chunk.content is None:
                continue
            reply.times.append(time.perf_counter())
            # Both are texts, or both are tuples of tokens.
            if reply.content is None:
                reply.content = chunk.content
            else:
                reply.content += chunk.content  # type: ignore[operator]
            if max_chunks is not None and len(reply.times) >= max_chunks:
                break
    return reply


async def closed_loop(
    transport: Transport, requests: Sequence[ClientRequest], users: int
) -> list[Reply]:
    """Send all requests from `users` users, each with one open request at a time."""
    waiting = deque(enumerate(requests))
    replies: dict[int, Reply] = {}

    async def user() -> None:
        while waiting:
            index, request = waiting.popleft()
            replies[index] = await ask(transport, request)

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())
    return [replies[index] for index in range(len(requests))]


async def open_loop(
    transport: Transport, requests: Sequence[ClientRequest], arrivals: Sequence[float]
) -> list[Reply]:
    """Send each request at its arrival time (in seconds), without a concurrency limit."""

    async def delayed(request: ClientRequest, delay: float) -> Reply:
        await asyncio.sleep(delay)
        return await ask(transport, request)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(delayed(request, delay))
            for request, delay in zip(requests, arrivals, strict=True)
        ]
    return [task.result() for task in tasks]


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Return the arrival times of `count` requests, in seconds, at `rate` per second."""
    rng = random.Random(seed)
    arrival, times = 0.0, []
    for _ in range(count):
        arrival += rng.expovariate(rate)
        times.append(arrival)
    return times
