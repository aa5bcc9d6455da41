"""Callers in event loops: they wait for steps that a thread makes, one step for all of a loop at
a time.
"""

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

_Taken = deque[tuple[list[Outcome], bool]]


class _Loop:
    """What the callers of one event loop share.

    Attributes:
        steps: the task that makes steps while anybody waits for one.
        waiting: what is set when there is news of a ticket. Only those it concerns wake up: a
            thousand may wait for a place.
        streams: what has been collected for the tickets that keep their outcomes, and not yet been
            given out.
    """

    def __init__(self) -> None:
        self.steps: asyncio.Task[None] | None = None
        self.waiting: dict[RequestHandle, asyncio.Future[None]] = {}
        self.streams: dict[RequestHandle, _Taken] = {}

    def tell(self) -> None:
        """Wake up those of whose tickets there is news."""
        for handle in [
            handle for handle in self.waiting if handle.done or self.streams.get(handle)
        ]:
            news = self.waiting.pop(handle)
            if not news.done():
                news.set_result(None)

    def fail(self, error: BaseException) -> None:
        """No more steps are made: all that wait are told why."""
        for news in {*self.waiting.values()}:
            if isinstance(error, asyncio.CancelledError):
                news.cancel()
            elif not news.done():
                news.set_exception(error)
        self.waiting.clear()


class AsyncEngine:
    """Advances the requests of coroutines. No event loop stands still for a step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Threads of their own: however many callers wait for a drafter that takes long to make, the
        # steps of the others go on.
        self._stepping = Threads(1, "paceline-steps")
        self._making = Threads(1, "paceline-drafters")
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = (
            weakref.WeakKeyDictionary()
        )

    async def submit(
        self, requests: Sequence[Request], keep_outcomes: bool = False
    ) -> list[RequestHandle]:
        """Queue sequences as `Engine.submit` does: the loop goes on while a drafter that one of
        them names is built.
        """
        if self._engine.has_drafters(requests):
            return self._engine.submit(requests, keep_outcomes=keep_outcomes)
        loop = asyncio.get_running_loop()
        made = loop.run_in_executor(
            self._making.executor,
            partial(self._engine.submit, requests, keep_outcomes=keep_outcomes),
        )
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(partial(self._withdraw, loop))
            raise

    def _withdraw(
        self, loop: asyncio.AbstractEventLoop, made: asyncio.Future[list[RequestHandle]]
    ) -> None:
        """Free what was queued for a caller that has gone meanwhile."""
        if made.exception() is None:
            loop.run_in_executor(None, self._engine.withdraw, made.result())

    @asynccontextmanager
    async def holding(self, handles: Sequence[RequestHandle]) -> AsyncGenerator[None, None]:
        """Free what `handles` hold at the end, however it comes."""
        loop = asyncio.get_running_loop()
        mine = self._loops.setdefault(loop, _Loop())
        mine.streams.update({handle: deque() for handle in handles if handle.outcomes is not None})
        try:
            yield
        finally:
            for handle in handles:
                mine.streams.pop(handle, None)
            # It may have to wait for a step, and a second cancellation must not keep it from being
            # done.
            await asyncio.shield(loop.run_in_executor(None, self._engine.withdraw, handles))

    async def finish(self, handles: Sequence[RequestHandle]) -> None:
        """Wait until all of `handles` are done.

        Raises:
            whatever ended one of them.
        """
        while going := [handle for handle in handles if not handle.done]:
            await self._news(going)
            raise_errors(handles)

    async def collect(self, handle: RequestHandle) -> tuple[list[Outcome], bool]:
        """Wait for steps of a ticket that keeps them; returns and raises as `Engine.collect`."""
        taken = self._loops[asyncio.get_running_loop()].streams[handle]
        while not taken:
            if not handle.outcomes:
                raise_errors([handle])
            await self._news([handle])
        return taken.popleft()

    async def _news(self, handles: Sequence[RequestHandle]) -> None:
        """Wait until one of `handles` is done or has something to collect; meanwhile steps are
        made, for everybody.
        """
        loop = asyncio.get_running_loop()
        mine = self._loops[loop]
        news = loop.create_future()
        mine.waiting.update(dict.fromkeys(handles, news))
        if mine.steps is None:
            mine.steps = loop.create_task(self._make_steps(mine))
        try:
            await news
        finally:
            for handle in handles:
                mine.waiting.pop(handle, None)

    async def _make_steps(self, mine: _Loop) -> None:
        loop = asyncio.get_running_loop()
        try:
            while mine.waiting:
                await loop.run_in_executor(self._stepping.executor, self._advance, mine)
                mine.tell()
        except BaseException as error:
            mine.fail(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            mine.steps = None

    def _advance(self, mine: _Loop) -> None:
        """Make a step, and collect it before the next one begins: collecting waits for a step
        that is being made.
        """
        self._engine.step()
        for handle, taken in mine.streams.copy().items():
            if handle.outcomes:
                taken.append(self._engine.collect(handle))
