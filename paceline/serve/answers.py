"""Generate the answers to one HTTP request.

For each answer, a task reads a stream from the engine and puts the chunks into a queue without
waiting for the client. Even if a client reads slowly, its answers finish at full speed and free
their slots for other requests. The request's token limit bounds the size of the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from paceline.core.sampling_params import SamplingParams
from paceline.errors import BusyError
from paceline.llm import LLM, Chunk, Completion
from paceline.serve.limits import AdmissionLimit
from paceline.serve.metrics import ServerMetrics

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A request to the engine for one answer: prompt token ids and parameters."""

    prompt: list[int]
    params: SamplingParams


class CompletionSet:
    """Generates the answers to one HTTP request; iteration yields their chunks.

    Args:
        llm: Model that generates the answers.
        answer_requests: Prompt and sampling parameters of each answer.
        seconds: Time limit per answer in seconds, including waiting time; None means no limit.
        gate: Limit on the number of open answers.
        meter: Server metrics that record the answers.
    Attributes:
        count: Number of answers.
        completions: Finished answers by index.
        error: Message of the error that ended a stream early; None if no error occurred.
    Raises:
        ApiError: Too many answers are open.
    """

    def __init__(
        self,
        llm: LLM,
        answer_requests: Sequence[AnswerRequest],
        seconds: float | None,
        gate: AdmissionLimit,
        meter: ServerMetrics,
    ) -> None:
        gate.enter(len(answer_requests))
        self._llm, self._seconds, self._gate, self._meter = llm, seconds, gate, meter
        self._chunks: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue()
        self.count = len(answer_requests)
        self.completions: dict[int, Completion] = {}
        self.error: str | None = None
        self._tasks = [
            asyncio.create_task(self._run(index, entry))
            for index, entry in enumerate(answer_requests)
        ]
        for task in self._tasks:
            # The callback also runs if the task is cancelled before it starts.
            task.add_done_callback(lambda _: gate.leave())

    async def __aiter__(self) -> AsyncIterator[tuple[int, Chunk]]:
        """Yield (answer index, chunk) as chunks arrive; raise an error if one occurs."""
        while len(self.completions) < self.count:
            event = await self._chunks.get()
            if isinstance(event, Exception):
                raise event
            index, chunk = event
            if chunk.completion is not None:
                self.completions[index] = chunk.completion
            yield index, chunk

    async def aclose(self) -> None:
        """Cancel the unfinished answers, and wait until their slots are free."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, index: int, answer_request: AnswerRequest) -> None:
        watch = self._meter.watch()
        try:
            async with (
                asyncio.timeout(self._seconds),
                aclosing(self._llm.astream(answer_request.prompt, answer_request.params)) as chunks,
            ):
                async for chunk in chunks:
                    watch.record(chunk)
                    self._chunks.put_nowait((index, chunk))
        except BusyError as error:
            self._chunks.put_nowait(self._gate.busy_error(str(error)))
        except Exception as error:
            self._chunks.put_nowait(error)
        finally:
            watch.end()


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, but cancel it if the client disconnects.

    Args:
        request: HTTP request of the client; its body must have been read completely.
        work: Work to await.
    Raises:
        ClientDisconnect: The client disconnected, and `work` was cancelled.
    """
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
