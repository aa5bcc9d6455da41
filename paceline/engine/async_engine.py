"""Serve requests from coroutines; a separate thread runs the engine's steps."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.engine.engine import Engine
from paceline.engine.request_handle import RequestHandle, raise_errors
from paceline.util.threads import Threads

_Collected = deque[tuple[list[Outcome], bool]]


class _LoopState:
    """State shared by the callers of an `AsyncEngine` in one event loop.

    Attributes:
        steps: Task that runs the engine's steps while at least one caller waits.
        waiting: For each request, the future that is set when the request has new outcomes or has
            ended. Thousands of callers may wait, so a future wakes only the callers that wait for
            this request.
        streams: For each streamed request, the outcomes that its caller has not collected yet.
    """

    def __init__(self) -> None:
        self.steps: asyncio.Task[None] | None = None
        self.waiting: dict[RequestHandle, asyncio.Future[None]] = {}
        self.streams: dict[RequestHandle, _Collected] = {}

    def wake(self) -> None:
        """Wake the callers whose requests have new outcomes or have ended."""
        for handle in [
            handle for handle in self.waiting if handle.done or self.streams.get(handle)
        ]:
            news = self.waiting.pop(handle)
            if not news.done():
                news.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the wait of all callers with the error that ended a step."""
        for news in {*self.waiting.values()}:
            if isinstance(error, asyncio.CancelledError):
                news.cancel()
            elif not news.done():
                news.set_exception(error)
        self.waiting.clear()


class AsyncEngine:
    """Serves requests from coroutines without blocking the event loop.

    Args:
        engine: Engine that runs all requests.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Two threads, so that building a slow drafter does not delay steps.
        self._stepping = Threads(1, "paceline-steps")
        self._making = Threads(1, "paceline-drafters")
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = (
            weakref.WeakKeyDictionary()
        )

    async def submit(
        self, requests: Sequence[Request], keep_outcomes: bool = False
    ) -> list[RequestHandle]:
        """Submit requests to the engine without blocking the event loop.

        `Engine.submit` runs in a separate thread if it has to build drafters.

        Args:
            requests: Requests to submit.
            keep_outcomes: Whether to keep the outcomes of each step for `collect`.
        Returns:
            One handle per request.
        """
        if self._engine.has_drafters(requests):
            return self._engine.submit(requests, keep_outcomes=keep_outcomes)
        loop = asyncio.get_running_loop()
        submitted = loop.run_in_executor(
            self._making.executor,
            partial(self._engine.submit, requests, keep_outcomes=keep_outcomes),
        )
        try:
            return await asyncio.shield(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(partial(self._withdraw, loop))
            raise

    def _withdraw(
        self, loop: asyncio.AbstractEventLoop, submitted: asyncio.Future[list[RequestHandle]]
    ) -> None:
        """Withdraw requests whose caller was cancelled during `submit`.

        Args:
            loop: Event loop of the caller.
            submitted: The finished call of `Engine.submit`.
        """
        if submitted.exception() is None:
            loop.run_in_executor(None, self._engine.withdraw, submitted.result())

    @asynccontextmanager
    async def holding(self, handles: Sequence[RequestHandle]) -> AsyncGenerator[None, None]:
        """Withdraw the requests when the `async with` block ends, even after an error."""
        loop = asyncio.get_running_loop()
        state = self._loops.setdefault(loop, _LoopState())
        state.streams.update({handle: deque() for handle in handles if handle.outcomes is not None})
        try:
            yield
        finally:
            for handle in handles:
                state.streams.pop(handle, None)
            # Withdrawing may wait for a step; the shield protects it from a second cancellation.
            await asyncio.shield(loop.run_in_executor(None, self._engine.withdraw, handles))

    async def finish(self, handles: Sequence[RequestHandle]) -> None:
        """Wait until all given requests are done.

        Raises:
            Exception: The error that ended a request.
        """
        while unfinished := [handle for handle in handles if not handle.done]:
            await self._wait_for_news(unfinished)
            raise_errors(handles)

    async def collect(self, handle: RequestHandle) -> tuple[list[Outcome], bool]:
        """Wait for new outcomes of a streamed request, and return them.

        Returns:
            The outcomes that have not been returned yet, oldest first, and whether the request has
            ended. After the end, no further outcomes follow.
        """
        collected = self._loops[asyncio.get_running_loop()].streams[handle]
        while not collected:
            if not handle.outcomes:
                raise_errors([handle])
            await self._wait_for_news([handle])
        return collected.popleft()

    async def _wait_for_news(self, handles: Sequence[RequestHandle]) -> None:
        """Wait until one of the requests has new outcomes (`Outcome`) or is done.

        If the event loop is not running any steps, the function starts them.
        """
        loop = asyncio.get_running_loop()
        state = self._loops[loop]
        news = loop.create_future()
        state.waiting.update(dict.fromkeys(handles, news))
        if state.steps is None:
            state.steps = loop.create_task(self._run_steps(state))
        try:
            await news
        finally:
            for handle in handles:
                state.waiting.pop(handle, None)

    async def _run_steps(self, state: _LoopState) -> None:
        loop = asyncio.get_running_loop()
        try:
            while state.waiting:
                await loop.run_in_executor(self._stepping.executor, self._advance, state)
                state.wake()
        except BaseException as error:
            state.fail(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            state.steps = None

    def _advance(self, state: _LoopState) -> None:
        """Run one step, and collect its outcomes before the next step starts."""
        self._engine.step()
        for handle, collected in state.streams.copy().items():
            if handle.outcomes:
                collected.append(self._engine.collect(handle))
