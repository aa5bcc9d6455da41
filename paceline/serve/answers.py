"""The answers of one request while they are being given.

Every answer is a stream of the engine's in a task of its own, which puts what comes into a queue
without waiting. A client that reads slowly so holds up nobody: the answer ends as soon as it would
for a fast one and gives its place back, and what waits to be sent is bounded by the tokens the
request may have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from paceline.core.request import SamplingParams
from paceline.errors import BusyError
from paceline.llm import LLM, Chunk, Completion
from paceline.serve.limits import AdmissionLimit
from paceline.serve.metrics import ServerMetrics

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One answer that is wanted: the token ids of its prompt, and how it is to be made."""

    prompt: list[int]
    params: SamplingParams


class CompletionSet:
    """The answers of one request, begun together; iterate over what they say.

    Args:
        seconds: that each may take, waiting included; None = as long as it needs.
    Attributes:
        count: how many. completions: those that have ended, by place.
        error: what ended a stream of them early; None = nothing has.
    Raises:
        ApiError: too many answers are open.
    """

    def __init__(
        self,
        llm: LLM,
        asked: Sequence[AnswerRequest],
        seconds: float | None,
        gate: AdmissionLimit,
        meter: ServerMetrics,
    ) -> None:
        gate.enter(len(asked))
        self._llm, self._seconds, self._gate, self._meter = llm, seconds, gate, meter
        self._said: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue()
        self.count = len(asked)
        self.completions: dict[int, Completion] = {}
        self.error: str | None = None
        self._tasks = [
            asyncio.create_task(self._give(place, one)) for place, one in enumerate(asked)
        ]
        for task in self._tasks:
            task.add_done_callback(
                lambda _: gate.leave()
            )  # also of one that is cancelled before it has begun

    async def __aiter__(self) -> AsyncIterator[tuple[int, Chunk]]:
        """(place, chunk) as they come, until all have ended; raises what ended one of them
        early.
        """
        while len(self.completions) < self.count:
            said = await self._said.get()
            if isinstance(said, Exception):
                raise said
            place, chunk = said
            if chunk.completion is not None:
                self.completions[place] = chunk.completion
            yield place, chunk

    async def finish(self) -> list[Completion]:
        """Wait for all of them; return them in order of their places."""
        async for _ in self:
            pass
        return [self.completions[place] for place in range(self.count)]

    async def aclose(self) -> None:
        """Abort what has not ended, and wait until everything is free."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _give(self, place: int, asked: AnswerRequest) -> None:
        watch = self._meter.watch()
        try:
            async with (
                asyncio.timeout(self._seconds),
                aclosing(self._llm.astream(asked.prompt, asked.params)) as chunks,
            ):
                async for chunk in chunks:
                    watch.see(chunk)
                    self._said.put_nowait((place, chunk))
        except BusyError as error:
            self._said.put_nowait(self._gate.later(str(error)))
        except Exception as error:
            self._said.put_nowait(error)
        finally:
            watch.end()


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for `work` as long as its client is there; its body has been read.

    Raises:
        ClientDisconnect: it is gone, and `work` has been cancelled.
    """
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        gone.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
