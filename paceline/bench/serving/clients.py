"""Clients: some who ask again as soon as they have their answer, and some who come when they
like.
"""

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
    """One answer as its client saw it.

    Attributes:
        began: when it was asked for, by `time.perf_counter`. times: when its pieces came.
        content: what it says, to be compared with other answers by the same transport.
    """

    request: ClientRequest
    began: float
    times: list[float] = field(default_factory=list)
    content: tuple[int, ...] | str | None = None
    tokens: int = 0


def waited(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, in an event loop of its own.

    Raises:
        the first error of any task of it.
    """
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from errors


async def ask(
    transport: Transport, request: ClientRequest, most_pieces: int | None = None
) -> Reply:
    """Ask, and wait for the answer, or leave after so many pieces of it."""
    reply = Reply(request, time.perf_counter())
    async with aclosing(transport.pieces(request)) as pieces:
        async for piece in pieces:
            reply.tokens += piece.tokens
            if piece.content is None:
                continue
            reply.times.append(time.perf_counter())
            # Both are texts, or both are tuples of tokens.
            reply.content = (
                piece.content if reply.content is None else reply.content + piece.content  # type: ignore[operator]
            )
            if most_pieces is not None and len(reply.times) >= most_pieces:
                break
    return reply


async def closed_loop(
    transport: Transport, requests: Sequence[ClientRequest], users: int
) -> list[Reply]:
    """All requests, by so many users; each asks the next one when it has its answer."""
    waiting = deque(enumerate(requests))
    replies: dict[int, Reply] = {}

    async def user() -> None:
        while waiting:
            place, request = waiting.popleft()
            replies[place] = await ask(transport, request)

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())
    return [replies[place] for place in range(len(requests))]


async def open_loop(
    transport: Transport, requests: Sequence[ClientRequest], arrivals: Sequence[float]
) -> list[Reply]:
    """All requests, each at its time in seconds, however many are open."""

    async def one(request: ClientRequest, at: float) -> Reply:
        await asyncio.sleep(at)
        return await ask(transport, request)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(request, at))
            for request, at in zip(requests, arrivals, strict=True)
        ]
    return [task.result() for task in tasks]


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Times in seconds at which `count` requests come, `rate` of them per second; the same for a
    seed.
    """
    chance = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        at += chance.expovariate(rate)
        times.append(at)
    return times
