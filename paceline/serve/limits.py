"""Limit the size of requests and the number of open answers."""

from __future__ import annotations

import math
import time
from collections import deque

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import ApiError
from paceline.serve.settings import RetrySettings

_RETRY = RetrySettings()


class BodyLimitMiddleware:
    """Middleware that rejects requests with an oversized body.

    Args:
        app: Application to wrap.
        max_bytes: Maximum size of a request body, in bytes.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or respond with status 413 if the body is too large."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            await self._too_large(declared).response()(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, f"more than {self._max_bytes} bytes")
            return message

        await self.app(scope, counted, send)

    def _too_large(self, size: str) -> ApiError:
        return ApiError(
            413, f"body: got {size} bytes; expected at most {self._max_bytes}. Shorten the request."
        )


class AdmissionLimit:
    """Limits the number of open answers, and estimates when answers will finish.

    An answer is open while it waits for a slot or is being generated.

    Args:
        max_open: Maximum number of open answers.
    Attributes:
        open: Current number of open answers.
    """

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._ended: deque[float] = deque(maxlen=_RETRY.num_recent)
        self.open = 0

    def enter(self, count: int) -> None:
        """Admit a request with `count` answers, or reject the whole request.

        Raises:
            ApiError: Too many answers would be open. The response has status 429 and a
                Retry-After header.
        """
        excess = self.open + count - self._max_open
        if excess > 0:
            raise self.busy_error(
                f"The server is busy: {self.open} answers are open, and the limit is"
                f" {self._max_open}.",
                excess,
            )
        self.open += count

    def busy_error(self, reason: str, count: int = 1) -> ApiError:
        """Build the error for a request that must wait until `count` answers finish."""
        seconds = self.seconds_until(count)
        return ApiError(
            429, f"{reason} Try again in {seconds} seconds.", headers={"Retry-After": str(seconds)}
        )

    def leave(self) -> None:
        """Count an answer as finished, regardless of how it ended."""
        self.open -= 1
        self._ended.append(time.monotonic())

    def seconds_until(self, count: int) -> int:
        """Estimate when `count` more answers will have finished, in seconds from now.

        The estimate is based on the finish times of recent answers.
        """
        if len(self._ended) < 2:
            return 1
        seconds_per_answer = (time.monotonic() - self._ended[0]) / (len(self._ended) - 1)
        return min(max(1, math.ceil(count * seconds_per_answer)), _RETRY.max_seconds)
