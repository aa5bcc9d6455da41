"""Test the load bench: statistics, both transports, and wrong outputs."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline import LLM, serve
from paceline.bench.serving import (
    LoadOptions,
    ServingConfig,
    ServingResult,
    markdown,
    print_table,
    read_json,
    run,
    run_serving,
    write_json,
    write_png,
)
from paceline.bench.serving.clients import closed_loop, open_loop, poisson, waited
from paceline.bench.serving.prompts import grown
from paceline.bench.serving.result import percentile
from paceline.bench.serving.transports import ClientRequest, Http, Piece, Transport, transport_to
from paceline.errors import CapacityError, ConfigError, PacelineError
from paceline.report.prompts import Prompt, load_prompts
from paceline.serve import Settings, create_app
from paceline.util.options import ModelOptions
from tests.support.cli import call

PROMPTS = [
    Prompt("a", "code", "def add(a, b):\n    return a"),
    Prompt("b", "code", "class Stack:\n    def pop(self):"),
]
CONFIG = ServingConfig(
    ModelOptions("demo", dtype="float32", threads=1),
    drafters=("prompt_lookup", "jacobi:block=3"),
    load=LoadOptions(
        users="1,2", rates="0.5", contexts="short,medium", medium=40, requests=3, transport="direct"
    ),
    max_new_tokens=6,
)


@pytest.fixture(scope="module")
def result() -> ServingResult:
    return run_serving(CONFIG, prompts=PROMPTS, progress=False)


def test_every_drafter_gets_every_load_in_turn(result: ServingResult) -> None:
    assert result.complete
    assert result.config.drafters == ("none", "prompt_lookup", "jacobi:block=3")
    assert [(load.context, load.kind, load.level) for load in result.loads] == [
        (context, kind, level)
        for context in ("short", "medium")
        for kind, level in (("closed", 1), ("closed", 2), ("poisson", 0.5))
    ]
    rounds = [
        [cell.drafter for cell in group]
        for _, group in itertools.groupby(result.cells, lambda cell: cell.load)
    ]
    assert all(sorted(names) == sorted(result.config.drafters) for names in rounds)
    assert rounds[0][0] == "none"
    assert len({names[0] for names in rounds}) == 3  # each drafter is first in some round
    for cell in result.cells:
        assert [answer.prompt for answer in cell.answers] == ["a", "b", "a"]
        assert all(
            answer.new_tokens == 6 and answer.last >= answer.first > 0 for answer in cell.answers
        )
        assert all(
            sum(answer.gaps) == pytest.approx(answer.last - answer.first, abs=1e-4)
            for answer in cell.answers
        )
        assert cell.seconds >= max(answer.last for answer in cell.answers)
        assert cell.timing is not None
        assert 0 < cell.timing.step < cell.seconds
        if cell.load.context == "medium":
            assert {answer.prompt_tokens for answer in cell.answers} == {40}
    assert any(
        len(answer.gaps) < 5 for cell in result.cells for answer in cell.answers
    )  # steps of several tokens


def test_statistics_match_the_outputs(result: ServingResult) -> None:
    for row in result.figures():
        (cell,) = [
            cell for cell in result.cells if (cell.load, cell.drafter) == (row.load, row.drafter)
        ]
        assert row.throughput == pytest.approx(18 / cell.seconds)
        assert row.cost * row.throughput == pytest.approx(1000)
        assert row.latency == (
            pytest.approx(row.load.level * row.cost) if row.load.kind == "closed" else None
        )
        assert row.first_p50 <= row.first_p99 <= 1000 * row.end_p99
        assert row.equal == row.compared
        assert row.compared == 3 or (
            row.drafter == "none" and row.load.level == 1
        )  # all but the two reference answers
        assert (row.speedup == 1) == (row.drafter == "none")
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(i) for i in range(1, 201)], 0.99) == 198.0
    assert percentile([7.0], 0.99) == 7.0


def test_reports_show_all_loads(result: ServingResult, tmp_path: Path) -> None:
    write_json(result, tmp_path / "r.json")
    assert read_json(tmp_path / "r.json") == result
    assert json.loads((tmp_path / "r.json").read_text())["command"] == CONFIG.command()
    write_png(result, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    out = io.StringIO()
    print_table(result, Console(file=out, width=200, highlight=False))
    text = markdown(result, "r.png")
    for shown in (out.getvalue(), text):
        assert "jacobi:block=3" in shown
        assert "50% of capacity" in shown
        assert "A load has up to 3 requests for only 2 prompts" in shown
    assert "![Latency and cost under load](r.png)" in text
    assert CONFIG.command() in text


class WrongTransport:
    """Transport that changes the first token of the last output, like a lossy drafter."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self._requests = inner, 0

    async def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        self._requests += request.length > 2
        number = self._requests
        async for piece in self._inner.pieces(request):
            # Requests are counted after the warm-up of three drafters; this is the last of six.
            wrong = number == 2 * 3 + 3
            assert isinstance(piece.content, tuple)
            yield replace(piece, content=(5, *piece.content[1:])) if wrong else piece


def test_a_wrong_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = transport_to

    @contextmanager
    def wrong(*arguments: Any) -> Iterator[Transport]:
        with right(*arguments) as inner:
            yield WrongTransport(inner)

    monkeypatch.setattr(run, "transport_to", wrong)
    load = LoadOptions(users="1", requests=2, transport="direct")
    result = run_serving(replace(CONFIG, load=load), prompts=PROMPTS, progress=False)
    assert [row.compared - row.equal for row in result.figures()] == [0, 0, 1]
    assert "jacobi:block=3: 1 answers differ." in markdown(result)


class SlowTransport:
    """Transport with two chunks per output, which counts open requests."""

    def __init__(self) -> None:
        self.open = self.max_open = 0

    async def pieces(self, request: ClientRequest) -> AsyncGenerator[Piece, None]:
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        for token in (1, 2):
            await asyncio.sleep(0.01)
            yield Piece((token,), 1)
        self.open -= 1
        if request.prompt == "bad":
            raise PacelineError("no")


def test_closed_and_open_loops_limit_requests() -> None:
    requests = [ClientRequest(str(number), [1], 2, None) for number in range(7)]
    slow = SlowTransport()
    replies = waited(closed_loop(slow, requests, 3))
    assert slow.max_open == 3
    assert [reply.request.prompt for reply in replies] == [str(number) for number in range(7)]
    assert all(
        reply.content == (1, 2) and reply.tokens == 2 and len(reply.times) == 2 for reply in replies
    )
    waited(open_loop(slow, requests, [0.0] * 7))
    assert slow.max_open == 7
    times = poisson(4.0, 4000, seed=1)
    assert times == poisson(4.0, 4000, seed=1) != poisson(4.0, 4000, seed=2)
    assert times[-1] == pytest.approx(1000, rel=0.1)
    with pytest.raises(PacelineError, match="no"):
        waited(closed_loop(slow, [ClientRequest("bad", [1], 2, None)], 1))


def test_prompts_grow_to_the_requested_length() -> None:
    llm = LLM("demo", "none", dtype="float32")
    prompts = load_prompts(limit=5)
    first, second = (grown(prompts, 1, 300, llm.tokenizer, 1000, drop) for drop in (0, 1))
    assert len(first) == len(second) == 300
    assert first[-20:] == second[-20:] == grown(prompts, 1, None, llm.tokenizer, 1000)[-20:]
    assert first[4:24] != second[4:24]
    with pytest.raises(
        CapacityError, match="prompts of 300 tokens, but the model's context has room for only 200"
    ):
        grown(prompts, 1, 300, llm.tokenizer, 200)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"users": "0,2"}, "users: got '0,2'"),
        ({"users": ""}, "users: got ''"),
        ({"users": "many"}, "users: got 'many'; expected numbers"),
        ({"rates": "0.5,3"}, "rates: got '0.5,3'"),
        ({"contexts": "short,huge"}, "contexts: got 'short,huge'"),
        ({"contexts": ""}, "contexts: got ''"),
        ({"medium": 2}, "medium"),
        ({"max_batch": -1}, "max_batch: got -1"),
    ],
)
def test_bad_load_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LoadOptions(**options)


def test_users_beyond_the_batch_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def engine(*arguments: Any, **options: Any) -> LLM:
        limits.append(options["max_batch"])
        return LLM(*arguments, **options)

    def app(llm: LLM, settings: Settings) -> Any:
        limits.append(settings.max_batch)
        return create_app(llm, settings)

    monkeypatch.setattr(run, "LLM", engine)
    monkeypatch.setattr(serve, "create_app", app)
    load = LoadOptions(users="4", requests=8, max_batch=2)
    config = replace(CONFIG, drafters=(), load=load)
    measured = run_serving(config, prompts=PROMPTS, progress=False)
    assert limits == [2, 2]
    assert [row.answers for row in measured.figures()] == [8]
    assert "--max-batch 2" in config.command()
    assert "batches of up to 2; " in markdown(measured)


def test_a_refused_request_ends_the_run() -> None:
    config = replace(CONFIG, load=LoadOptions())
    llm = LLM("demo", "none", dtype="float32", max_length=20)
    with transport_to(llm, config) as transport:
        assert isinstance(transport, Http)
        with pytest.raises(PacelineError, match=r"the server rejected a request: HTTP/1\.1 400"):
            waited(closed_loop(transport, [ClientRequest("a", [5] * 30, 4, None)], 1))
        (reply,) = waited(closed_loop(transport, [ClientRequest("a", [5] * 8, 4, None)], 1))
        assert reply.tokens == 4


def test_the_command_runs_over_http(tmp_path: Path) -> None:
    words = [
        "bench",
        "--serve",
        "--threads",
        "1",
        "--dtype",
        "float32",
        "--limit",
        "2",
        "-n",
        "6",
        "--users",
        "2",
    ]
    words += [
        "--requests",
        "2",
        "--drafter",
        "prompt_lookup",
    ]
    status, _ = call(*words, "--json", tmp_path / "r.json")
    assert status == 0
    result = read_json(tmp_path / "r.json")
    assert all(row.equal == row.compared for row in result.figures())
    assert result.config.command().startswith("paceline bench demo --serve")
    for extra in (["--batch", "2"], ["--temperature", "1"]):
        with pytest.raises(ConfigError, match=f"--serve does not take {extra[0]}"):
            call("bench", "--serve", *extra)
    with pytest.raises(ConfigError, match="Add --serve"):
        call("bench", "--users", "3")
