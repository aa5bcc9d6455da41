"""Check API keys, reject requests during shutdown, and log every request."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Iterable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import ApiError
from paceline.serve.serving import Serving

_log = logging.getLogger("paceline.serve.requests")
_API_PREFIX = "/v1/"


class ApiKeyMiddleware:
    """Middleware that rejects API requests without a valid API key.

    Args:
        app: Application to wrap.
        keys: Valid API keys. If empty, requests need no key.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or respond with status 401 if it has no valid key."""
        if (
            scope["type"] != "http"
            or not scope["path"].startswith(_API_PREFIX)
            or self._has_valid_key(Headers(scope=scope))
        ):
            await self.app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "The API key is missing or wrong. Send 'Authorization: Bearer KEY' with a key of the"
            " server.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal.response()(scope, receive, send)

    def _has_valid_key(self, headers: Headers) -> bool:
        """Return whether a request sends a valid key or needs no key.

        The comparison takes the same time for every key, so the response time does not reveal a
        valid key.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches) or not matches


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class RequestLogMiddleware:
    """Middleware that counts and logs API requests, and rejects them during shutdown."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self.app, self._serving = app, serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or respond with status 503 during shutdown."""
        if scope["type"] != "http" or not scope["path"].startswith(_API_PREFIX):
            await self.app(scope, receive, send)
            return
        state, began, status = scope.setdefault("state", {}), time.perf_counter(), 0
        state["id"] = secrets.token_hex(12)

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = state["id"]
            await send(message)

        drain = self._serving.drain
        drain.open += 1
        try:
            if drain.begun:
                refusal = ApiError(
                    503, "The server is shutting down. Use another server, or try again later."
                )
                await refusal.response()(scope, receive, send_and_note)
            else:
                await self.app(scope, receive, send_and_note)
        except Exception:
            status = status or 500  # the framework sends this status, but not through `send`
            raise
        finally:
            drain.open -= 1
            self._serving.meter.count_status(status)
            _log.info("%s", json.dumps(self._line(scope, status, time.perf_counter() - began)))

    def _line(self, scope: Scope, status: int, seconds: float) -> dict[str, Any]:
        state = scope["state"]
        answers = state.get("answers")
        stats = (
            []
            if answers is None
            else [completion.stats for completion in answers.completions.values()]
        )
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": state["id"],
            "model": self._serving.names[0],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            "answers": 0 if answers is None else answers.count,
            "finished": len(stats),
            "prompt_tokens": state.get("prompt_tokens", 0),
            "tokens": sum(stat.new_tokens for stat in stats),
            "forwards": sum(stat.target_forwards for stat in stats),
            "drafted": sum(stat.drafted_tokens for stat in stats),
            "accepted": sum(stat.accepted_tokens for stat in stats),
            "error": getattr(answers, "error", None) or state.get("error"),
        }
