"""Test vLLM's HTTP server with aborted requests and a failing drafter.

It stays up, and its outputs are correct.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from paceline import datastore
from tests.support.vllm_engine import HOOK, ROOT, served

REQUESTS = int(os.environ.get("PACELINE_VLLM_REQUESTS", "1000"))
CLIENTS = 16


@dataclass(frozen=True)
class Server:
    """Running server: its URL, and the datastore of its outputs."""

    url: str
    store: Path

    def client(self) -> Any:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300.0)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = httpx2.get(self.url + "/metrics", timeout=30.0).text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if re.match(re.escape(name) + r"[ {]", line)
        )

    def paceline(self, *words: str) -> str:
        """Run a datastore command on the server's store, while the server runs."""
        done = subprocess.run(
            [sys.executable, "-m", "paceline", "datastore", *words, str(self.store)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server whose drafter fails in one call of twenty.

    Finished outputs go into a new store.
    """
    folder = tmp_path_factory.mktemp("server")
    figures = folder / "prometheus"
    figures.mkdir()
    ours = {
        "drafter": "tests.support.faulty_drafter:Faulty:"
        f"rate=0.05,datastore={folder / 'store'},update_datastore=true",
        "length": "full",
    }
    with served(model, folder / "log", HOOK, ours, PROMETHEUS_MULTIPROC_DIR=str(figures)) as url:
        yield Server(url, folder / "store")


def ask(server: Server, prompt: list[int], reference: list[int], seed: int) -> str:
    """Send a request; return "right", "wrong", or "aborted" if it was closed early."""
    rng = random.Random(seed)
    count = rng.randrange(4, 60)
    request: dict[str, Any] = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0.0,
    }
    with server.client() as client:
        if rng.random() < 0.3:
            with client.completions.create(**request, stream=True) as stream:
                for _ in zip(range(rng.randrange(0, 6)), stream, strict=False):
                    pass
            return "aborted"
        answer = client.completions.create(**request, extra_body={"return_token_ids": True})
        return "right" if answer.choices[0].token_ids == reference[:count] else "wrong"


def test_outputs_are_right_while_the_drafter_fails(
    server: Server, prompts: list[list[int]], references: list[list[int]]
) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        calls = [
            pool.submit(
                ask,
                server,
                prompts[number % len(prompts)],
                references[number % len(prompts)],
                number,
            )
            for number in range(REQUESTS)
        ]
        while not all(one.done() for one in calls):
            assert "tokens" in server.paceline("info")
            server.paceline("verify")
            time.sleep(2.0)
        ends = [one.result() for one in calls]
    assert ends.count("wrong") == 0
    assert ends.count("right") > 0.6 * REQUESTS
    assert ends.count("aborted") > 0.2 * REQUESTS
    assert server.metric("paceline:drafter_failures_total") > REQUESTS / 100
    assert server.metric("paceline:spec_decode_num_accepted_tokens_total") > 0
    assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
    until = time.monotonic() + 60
    while server.metric("paceline:tracked_requests") or server.metric("vllm:num_requests_running"):
        assert time.monotonic() < until, "requests are still open"
        time.sleep(0.5)


def test_metrics_agree_with_those_of_vllm(server: Server) -> None:
    """The metrics count the requests of the test above."""
    assert server.metric("paceline:tokens_per_step_count") > 0
    assert server.metric("paceline:retrieval_seconds_sum") > 0
    drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
    assert 0 < drafted <= server.metric("paceline:spec_decode_num_draft_tokens_total")
    until = time.monotonic() + 60  # outputs are on disk after half a minute
    while server.metric("paceline:store_tokens") < 1000:
        assert time.monotonic() < until
        time.sleep(1.0)
    assert datastore.info(server.store).documents > 50
    assert not datastore.verify(server.store)
