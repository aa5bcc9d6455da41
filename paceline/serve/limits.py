"""How much is taken in: the size of a body, and the answers that are open at a time."""

from __future__ import annotations

import math
import time
from collections import deque

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import ApiError

_RECENT = 64  # ended answers by which the pace is judged
_LONGEST_WAIT = 600  # seconds that a client is told to wait at most


class BodyLimit:
    """Middleware that reads no more than `most` bytes of a request."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it in, or answer 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._most:
            await self._too_large(declared).response()(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise HTTPException(413, f"more than {self._most} bytes")
            return message

        await self.app(scope, counted, send)

    def _too_large(self, size: str) -> ApiError:
        return ApiError(
            413, f"body: got {size} bytes; expected at most {self._most}. Shorten the request."
        )


class AdmissionLimit:
    """Counts open answers and refuses more than `most`; tells how soon one will have ended, by
    the pace of the last ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ended: deque[float] = deque(maxlen=_RECENT)
        self.open = 0

    def enter(self, count: int) -> None:
        """Let in the answers of a request, all or none.

        Raises:
            ApiError: with status 429 and Retry-After, seconds.
        """
        over = self.open + count - self._most
        if over > 0:
            raise self.later(
                f"got {count} answers to give with {self.open} open; expected at most {self._most}"
                " in all.",
                over,
            )
        self.open += count

    def later(self, why: str, count: int = 1) -> ApiError:
        """What a request is refused with that can be right when `count` answers have ended."""
        seconds = self.seconds_until(count)
        return ApiError(
            429, f"{why} Ask again in {seconds} seconds.", headers={"Retry-After": str(seconds)}
        )

    def leave(self) -> None:
        """One answer has ended, whichever way."""
        self.open -= 1
        self._ended.append(time.monotonic())

    def seconds_until(self, count: int) -> int:
        """Return the time in which so many answers end at the present pace: count * (now -
        first) / ended since; at least 1.
        """
        if len(self._ended) < 2:
            return 1
        pace = (time.monotonic() - self._ended[0]) / (len(self._ended) - 1)
        return min(max(1, math.ceil(count * pace)), _LONGEST_WAIT)
