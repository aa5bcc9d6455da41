"""A server for a model in a thread of this process, and OpenAI's client for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from openai import OpenAI

from paceline import LLM
from paceline.serve import Settings, create_app
from paceline.serve.shutdown import DrainingServer
from paceline.serve.sockets import listen


@contextmanager
def local_server(llm: LLM, settings: Settings) -> Iterator[str]:
    """Serve a model while the block runs, and yield the server's URL."""
    app = create_app(llm, settings)
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, access_log=False)
    server = DrainingServer(config, app.state.serving.drain)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def openai_client(url: str) -> OpenAI:
    """Return OpenAI's client for a local server."""
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
