"""Run a real server in a thread of the test process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from openai import OpenAI

from paceline import LLM
from paceline.serve import Settings, create_app
from paceline.serve.serving import Serving
from paceline.serve.shutdown import DrainingServer
from paceline.serve.sockets import listen

KEY = "a key"
_SECONDS = 90.0  # only reached by a test that hangs


@dataclass(frozen=True)
class Served:
    """Running server with its port and components."""

    port: int
    serving: Serving
    server: DrainingServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> Any:
        """Return the official OpenAI client without retries.

        The client is untyped, because tests send requests that its types forbid.
        """
        return OpenAI(
            base_url=f"{self.url}/v1",
            api_key=KEY,
            **{"max_retries": 0, "timeout": _SECONDS, **options},
        )

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        """Return the response to a JSON body, or to bytes sent as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content": content, "headers": {}, **options}
        given["headers"] = {"content-type": "application/json", **given["headers"]}
        return httpx2.post(self.url + path, timeout=_SECONDS, **given)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=_SECONDS)

    def open_work(self) -> int:
        """Return how many sequences, responses and requests remain open.

        Waits for them to finish first, up to a limit.
        """
        until = time.monotonic() + _SECONDS
        while (count := self._open()) and time.monotonic() < until:
            time.sleep(0.02)
        return count

    def _open(self) -> int:
        return (
            self.serving.llm.model.open_sequences + self.serving.gate.open + self.serving.drain.open
        )


@contextmanager
def served(llm: LLM, keys: tuple[str, ...] = (KEY,), **limits: Any) -> Iterator[Served]:
    """Run a server for `llm` within the context."""
    app = create_app(llm, Settings(**{"served_name": ("demo",), "max_batch": 8, **limits}), keys)
    listener = listen("127.0.0.1", 0)
    server = DrainingServer(
        uvicorn.Config(app, log_config=None, access_log=False), app.state.serving.drain
    )
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield Served(listener.getsockname()[1], app.state.serving, server)
    finally:
        server.should_exit = True
        thread.join(_SECONDS)
        assert not thread.is_alive()
