"""Test faults of clients, drafters and processes.

Only the affected clients notice them, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from openai import APIConnectionError, APIError, InternalServerError, OpenAI, RateLimitError

from paceline import LLM, DraftTree, ScriptedDrafter
from paceline.drafters.pia.drafter import Pia
from tests.support.commands import start_command
from tests.support.serving import KEY, Served, served
from tests.support.shared import Pair

LONG: dict[str, Any] = {"model": "demo", "prompt": [5, 6, 7], "max_tokens": 100, "temperature": 0}
ENDLESS = {"extra_body": {"ignore_eos": True, "speculation": False}}
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def server(tiny: LLM) -> Iterator[Served]:
    with served(tiny, max_batch=16) as one:
        yield one
        assert one.open_work() == 0


def raw(server: Served, body: dict[str, Any]) -> socket.socket:
    """Open a connection, send a request, and read nothing yet."""
    content = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type:"
        " application/json\r\n"
    )
    connection.sendall(
        f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
    )
    return connection


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "it did not happen in 90 s"
        time.sleep(0.005)


def test_closing_a_stream_frees_its_request(server: Served, client: Any) -> None:
    stream = client.completions.create(**LONG, **ENDLESS, stream=True)
    next(iter(stream))
    assert server.serving.gate.open == 1
    stream.close()
    assert server.open_work() == 0


def test_a_disconnected_client_frees_its_request(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "paceline.serve"):
        with raw(server, {**LONG, "ignore_eos": True}):
            wait_until(lambda: server.serving.gate.open == 1)
        assert server.open_work() == 0
        # Objects of earlier tests may log when they are collected.
        wait_until(lambda: bool(served_messages(caplog)))
    assert json.loads(served_messages(caplog)[-1])["status"] == 499


def served_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.name == "paceline.serve.requests"]


def test_a_slow_reader_does_not_delay_others(server: Served, client: Any) -> None:
    """Its request frees the slot while nothing is read, and loses no text."""
    wanted = client.completions.create(**LONG, **ENDLESS).choices[0].text
    with raw(server, {**LONG, "ignore_eos": True, "stream": True, "logprobs": 3}) as connection:
        wait_until(lambda: server.serving.gate.open > 0)
        assert client.completions.create(**LONG, **ENDLESS).choices[0].text == wanted
        wait_until(lambda: not server.serving.gate.open)
        assert server.serving.llm.model.open_sequences == 0
        read = b""
        while more := connection.recv(1 << 16):
            read += more
    assert b"data: [DONE]" in read


def test_a_failing_drafter_is_replaced_by_plain_decoding(pair: Pair, tokenizer: Any) -> None:
    """Its requests continue without drafts; others are unaffected."""

    def fail(requests: Any, max_nodes: Any) -> Any:
        raise RuntimeError("no idea")

    llm = LLM(pair.target, ScriptedDrafter(fail), tokenizer=tokenizer, on_drafter_error="plain")
    with served(llm) as one, one.client() as client:
        found = [
            client.completions.create(
                model="demo",
                prompt=pair.prompts[0],
                max_tokens=12,
                temperature=0,
                extra_body={"speculation": speculation},
            )
            for speculation in (None, False)
        ]
        assert found[0].choices[0].text == found[1].choices[0].text
        assert 'paceline:drafter_failures_total{model_name="demo"} 1.0' in one.get("/metrics").text
        assert one.open_work() == 0


def test_requests_have_a_time_limit(tiny: LLM) -> None:
    with served(tiny, timeout=0.01) as hurried, hurried.client() as client:
        with pytest.raises(InternalServerError, match="exceeded the time limit") as caught:
            client.completions.create(**LONG, **ENDLESS)
        assert caught.value.status_code == 504
        with pytest.raises(APIError, match="exceeded the time limit"):
            list(client.completions.create(**LONG, **ENDLESS, stream=True))
        assert hurried.open_work() == 0


def test_too_many_requests_are_refused(tiny: LLM) -> None:
    with served(tiny, max_batch=1, max_waiting=1) as small, small.client() as client:
        stream = client.completions.create(**LONG, **ENDLESS, stream=True)
        waiting = raw(small, LONG)
        while small.serving.gate.open < 2:
            time.sleep(0.005)
        with pytest.raises(RateLimitError, match="the limit is 2") as caught:
            client.completions.create(**LONG)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        waiting.close()
        stream.close()
        assert small.open_work() == 0
        assert client.completions.create(**LONG).choices[0].finish_reason


def test_too_many_drafters_are_refused_for_now(
    pair: Pair, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one drafter besides the engine's is allowed, and a slow request uses it."""
    # No earlier request of this engine has named a drafter.
    llm = LLM(pair.target, "prompt_lookup:budget=false", tokenizer=tokenizer, max_batch=16)
    drafting, may_finish = threading.Event(), threading.Event()
    propose = Pia.propose

    def slowly(self: Pia, *arguments: Any) -> list[DraftTree]:
        drafting.set()
        assert may_finish.wait(60)
        return propose(self, *arguments)

    monkeypatch.setattr(Pia, "propose", slowly)
    monkeypatch.setattr("paceline.engine.drafter_pool.MAX_NAMED_DRAFTERS", 1)
    other = {"speculation": "pia:max_nodes=3"}
    with served(llm) as small, small.client() as client:
        with raw(small, {**LONG, "ignore_eos": True, "speculation": "pia:max_nodes=2"}):
            assert drafting.wait(60)
            try:
                with pytest.raises(
                    RateLimitError, match="got one more drafter while 1 others are in use"
                ) as caught:
                    client.completions.create(**LONG, extra_body=other)
            finally:
                may_finish.set()
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert small.open_work() == 0
        assert client.completions.create(**LONG, extra_body=other).choices[0].finish_reason


def test_shutdown_waits_for_open_requests(tiny: LLM, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "paceline.serve"),
        served(tiny) as ending,
        ending.client() as client,
        ending.client() as other,
    ):
        stream = iter(client.completions.create(**LONG, **ENDLESS, stream=True))
        next(stream)
        ending.server.handle_exit(signal.SIGTERM, None)
        assert ending.get("/health").status_code == 503
        with pytest.raises(InternalServerError, match="shutting down") as caught:
            other.completions.create(**LONG)
        assert caught.value.status_code == 503
        assert list(stream)[-1].choices[0].finish_reason == "length"
    assert ending.server.forced is None
    waiting = [line for line in caplog.messages if line.startswith("stopping: ")]
    assert waiting == ["stopping: waiting for 1 open request; another Ctrl-C or SIGTERM stops now"]
    with pytest.raises(httpx2.ConnectError):
        ending.get("/health")


def test_a_second_signal_ends_at_once(tiny: LLM) -> None:
    with served(tiny) as ending, ending.client() as client:
        stream = iter(client.completions.create(**LONG, **ENDLESS, stream=True))
        next(stream)
        for _ in range(2):
            ending.server.handle_exit(signal.SIGINT, None)
        with pytest.raises(
            Exception, match=r"."
        ):  # clients raise different errors for a broken connection
            assert list(stream)[-1].choices[0].finish_reason is None, "the stream was completed"
    assert ending.server.forced == signal.SIGINT
    assert ending.open_work() == 0


def test_every_request_has_a_log_line(
    server: Served, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "paceline.serve"):
        found = client.completions.create(**LONG)
        server.post("/v1/completions", {"prompt": 5}, headers=HEADERS)
        assert server.open_work() == 0
        # A line may be written after the client has read the answer.
        wait_until(lambda: len(served_messages(caplog)) == 2)
    lines = list(map(json.loads, served_messages(caplog)))
    assert [line["status"] for line in lines] == [200, 400]
    assert found.usage is not None
    assert lines[0]["id"] in found.id
    assert (lines[0]["tokens"], lines[0]["prompt_tokens"], lines[0]["finished"]) == (
        found.usage.completion_tokens,
        3,
        1,
    )
    assert 0 < lines[0]["forwards"] <= lines[0]["tokens"]
    assert lines[1]["error"].startswith("prompt: got 5")
    assert all(line["seconds"] > 0 and line["model"] == "demo" for line in lines)


def test_a_thousand_connections_are_served(server: Served) -> None:
    """A thousand clients connect at once, and every tenth sends a prompt."""
    body = json.dumps({"prompt": [5, 6], "max_tokens": 1, "temperature": 0}).encode()
    rest = (
        f"Host: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\nConnection:"
        " close\r\n"
    )
    asking = (
        f"POST /v1/completions HTTP/1.1\r\n{rest}Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    looking = f"GET /health HTTP/1.1\r\n{rest}\r\n".encode()

    async def ask(opened: asyncio.Barrier, number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await opened.wait()
        writer.write(looking if number % 10 else asking)
        answer = await reader.read()
        writer.close()
        return answer

    async def run() -> list[bytes]:
        opened = asyncio.Barrier(1000)
        return await asyncio.gather(*[ask(opened, number) for number in range(1000)])

    answers = asyncio.run(run())
    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
    texts = {
        json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
        for answer in answers[::10]
    }
    assert len(texts) == 1
    assert server.open_work() == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_killed_and_terminated_servers(end: signal.Signals) -> None:
    """Clients of a killed server get an error, those of a terminated one answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = (
        "--port",
        str(port),
        "--drafter",
        "none",
        "--dtype",
        "float32",
        "--batch-invariant",
        "off",
    )
    process = start_command("paceline", "serve", "demo", *words)
    try:
        with OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0, timeout=60
        ) as client:
            stream = iter(
                _when_up(client).completions.create(
                    **{**LONG, "max_tokens": 40}, **ENDLESS, stream=True
                )
            )
            next(stream)
            assert process.pid is not None
            os.kill(process.pid, end)
            if end == signal.SIGKILL:
                with pytest.raises((httpx2.HTTPError, APIError)):
                    list(stream)
            else:
                assert list(stream)[-1].choices[0].finish_reason == "length"
        process.join(30)
        assert process.exitcode == (-signal.SIGKILL if end == signal.SIGKILL else 0)
    finally:
        process.kill()
        process.join()


def _when_up(client: Any) -> Any:
    """Return the client as soon as the server responds."""
    until = time.monotonic() + 60
    while True:
        try:
            client.models.list()
            return client
        except APIConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
