"""What stands before all endpoints: keys, the end of the server, and a line of log for every
request.
"""

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
_GUARDED = "/v1/"


class Keys:
    """Middleware that lets nobody without a key to what is guarded.

    Args:
        keys: any of them will do; none: everybody may.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it in, or answer 401."""
        if (
            scope["type"] != "http"
            or not scope["path"].startswith(_GUARDED)
            or self._fits(Headers(scope=scope))
        ):
            await self.app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "Authorization: got no valid key; expected 'Bearer KEY' with one of the server's. Pass"
            " it as api_key.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal.response()(scope, receive, send)

    def _fits(self, headers: Headers) -> bool:
        """Whether a request has a key; takes the same time whatever it is and however much of it
        is right.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
        found = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(found) or not found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class RequestLogMiddleware:
    """Middleware that numbers requests, counts open ones, takes none at the end, and writes a
    line of log about each.
    """

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self.app, self._serving = app, serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it in, or answer 503."""
        if scope["type"] != "http" or not scope["path"].startswith(_GUARDED):
            await self.app(scope, receive, send)
            return
        state, began, status = scope.setdefault("state", {}), time.perf_counter(), 0
        state["id"] = secrets.token_hex(12)

        async def noted(message: Message) -> None:
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
                    503,
                    "got a request while the server shuts down; expected none. Ask another one, or"
                    " later.",
                )
                await refusal.response()(scope, receive, noted)
            else:
                await self.app(scope, receive, noted)
        except Exception:
            status = status or 500  # which the framework says behind our back
            raise
        finally:
            drain.open -= 1
            self._serving.meter.count_status(status)
            _log.info("%s", json.dumps(self._line(scope, status, time.perf_counter() - began)))

    def _line(self, scope: Scope, status: int, seconds: float) -> dict[str, Any]:
        state = scope["state"]
        answers = state.get("answers")
        stats = [] if answers is None else [one.stats for one in answers.completions.values()]
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
            "tokens": sum(one.new_tokens for one in stats),
            "forwards": sum(one.target_forwards for one in stats),
            "drafted": sum(one.drafted_tokens for one in stats),
            "accepted": sum(one.accepted_tokens for one in stats),
            "error": getattr(answers, "error", None) or state.get("error"),
        }
