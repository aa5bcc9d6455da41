"""Two ways to the same engine: its own asyncio calls, and HTTP to a server in a thread of this
process.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.bench.serving.settings import ServingConfig
from paceline.core.request import SamplingParams
from paceline.drafters import PLAIN
from paceline.errors import PacelineError
from paceline.llm import LLM
from paceline.util.sockets import listen

_SECONDS = 60.0  # a server that has not come up or gone down by then never will


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asks. `length`: most tokens of the answer, all of them if `whole`.
    `drafter`: None = the engine's own.
    """

    prompt: str
    token_ids: list[int]
    length: int
    drafter: str | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """What a client gets at a time. `content` makes up the answer, to be compared; None where
    only the count came.
    """

    content: tuple[int, ...] | str | None
    tokens: int


class Transport(Protocol):
    """A way to ask."""

    def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        """The answer, as it comes; closing it ends the request."""


class Direct:
    """`LLM.astream`."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    async def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        """The steps of the engine."""
        params = SamplingParams(
            request.length, ignore_eos=request.whole, speculation=request.drafter
        )
        async with aclosing(self._llm.astream(request.token_ids, params)) as chunks:
            async for chunk in chunks:
                yield Piece(tuple(chunk.token_ids), len(chunk.token_ids))


class Http:
    """POST /v1/completions, streamed."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        """The events of the stream; the count of tokens comes with the last one.

        Raises:
            PacelineError: the server refused the request, or ended it.
        """
        body = {
            "prompt": request.token_ids,
            "max_tokens": request.length,
            "temperature": 0,
            "ignore_eos": request.whole,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": False
            if request.drafter == PLAIN
            else request.drafter,  # null: the engine's own
        }
        async with self._posted(json.dumps(body).encode()) as reader:
            while line := await reader.readline():
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue  # lengths of the chunks, and empty lines
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
                told = (await reader.read()).decode(errors="replace")
                raise PacelineError(
                    f"bench: the server refused a request: {status.decode().strip()} {told[:300]}"
                )
            yield reader
        finally:
            writer.close()


@contextmanager
def transport_to(llm: LLM, config: ServingConfig, most_users: int) -> Iterator[Transport]:
    """The way of asking that `config` names, open as long as the block lasts."""
    if config.load.transport == "direct":
        yield Direct(llm)
        return
    with _server(llm, config, most_users) as port:
        yield Http(port)


@contextmanager
def _server(llm: LLM, config: ServingConfig, most_users: int) -> Iterator[int]:
    """A server over `llm`; gives its port."""
    import uvicorn

    from paceline.serve import Settings, create_app

    settings = Settings(
        served_name=(config.models.model,),
        max_batch=most_users,
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
        thread.join(_SECONDS)
        listener.close()
