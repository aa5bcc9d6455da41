"""Send requests to one engine, through asyncio calls or over HTTP.

The HTTP server runs in a thread of this process.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.bench.serving.measure_settings import SERVER_TIMEOUT_SECONDS
from paceline.bench.serving.settings import ServingConfig
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import PLAIN
from paceline.errors import PacelineError
from paceline.llm import LLM
from paceline.serve.sockets import listen


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request.

    Attributes:
        prompt: Id of the prompt.
        token_ids: Token ids of the prompt.
        length: Maximum number of tokens in the answer.
        drafter: Spec of the drafter; None means the engine's default.
        ignore_eos: Whether to ignore end-of-sequence tokens, so that the answer has `length`
            tokens.
    """

    prompt: str
    token_ids: list[int]
    length: int
    drafter: str | None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of an answer.

    Attributes:
        content: Tokens or text of the chunk, for comparison; None if the chunk only reports a
            count.
        tokens: Number of tokens.
    """

    content: tuple[int, ...] | str | None
    tokens: int


class Transport(Protocol):
    """Sends clients' requests to the engine."""

    def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        """Yield the chunks of an answer; closing the generator aborts the request."""


class Direct:
    """Sends requests to the engine through `LLM.astream`."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    async def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        """Yield one chunk per step of the engine."""
        params = SamplingParams(
            request.length, ignore_eos=request.ignore_eos, speculation=request.drafter
        )
        async with aclosing(self._llm.astream(request.token_ids, params)) as chunks:
            async for chunk in chunks:
                yield Piece(tuple(chunk.token_ids), len(chunk.token_ids))


class Http:
    """Sends streaming requests to the server's /v1/completions endpoint."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        """Yield one chunk per event of the stream; the last one contains the token count.

        Raises:
            PacelineError: The server rejected or ended the request.
        """
        body = {
            "prompt": request.token_ids,
            "max_tokens": request.length,
            "temperature": 0,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": False
            if request.drafter == PLAIN
            else request.drafter,  # null uses the engine's drafter
        }
        async with self._posted(json.dumps(body).encode()) as reader:
            while line := await reader.readline():
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue  # chunk lengths and empty lines
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise PacelineError(f"bench: the server ended a request: {event['error']}")
                if event["choices"]:
                    yield Piece(event["choices"][0]["text"], 0)
                if event.get("usage"):
                    yield Piece(None, event["usage"]["completion_tokens"])

    @asynccontextmanager
    async def _posted(self, body: bytes) -> AsyncGenerator[asyncio.StreamReader, None]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        try:
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type:"
                " application/json\r\nConnection: close\r\n"
            )
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status = await reader.readline()
            while (await reader.readline()).strip():
                pass
            if status.split()[1:2] != [b"200"]:
                reason = (await reader.read()).decode(errors="replace")
                raise PacelineError(
                    f"bench: the server rejected a request: {status.decode().strip()}"
                    f" {reason[:300]}"
                )
            yield reader
        finally:
            writer.close()


@contextmanager
def transport_to(llm: LLM, config: ServingConfig) -> Iterator[Transport]:
    """Open the transport named in `config` for the duration of a `with` block.

    Args:
        llm: Engine that answers the requests.
        config: Configuration that names the transport and the loads.
    """
    if config.load.transport == "direct":
        yield Direct(llm)
        return
    with _server(llm, config) as port:
        yield Http(port)


@contextmanager
def _server(llm: LLM, config: ServingConfig) -> Iterator[int]:
    """Run a server for `llm`, and yield its port."""
    import uvicorn

    from paceline.serve import Settings, create_app

    settings = Settings(
        served_name=(config.models.model,),
        max_batch=config.load.batch,
        allow_drafter=config.drafters[1:],
        ignore_generation_config=True,
    )
    listener = listen("127.0.0.1", 0)
    server: Any = uvicorn.Server(
        uvicorn.Config(create_app(llm, settings), log_config=None, access_log=False)
    )
    thread = threading.Thread(target=server.run, args=([listener],), name="paceline-bench-server")
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(SERVER_TIMEOUT_SECONDS)
        listener.close()
