"""Test forks after a model is loaded: children work, or report why not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from paceline import LLM, SamplingParams, datastore
from paceline.core.node_logits import NodeLogits
from paceline.datastore import build
from paceline.integrations.transformers import Strategy
from paceline.serve import create_app
from paceline.util import threads
from tests.support.forking import in_child
from tests.support.shared import Pair

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
SHORT = SamplingParams(12)
DRAFTERS = ("none", "auto", "sssd", "draft_model")


async def streamed(llm: LLM, prompt: list[int]) -> list[int]:
    return [
        token
        for chunk in [chunk async for chunk in llm.astream(prompt, SHORT)]
        for token in chunk.token_ids
    ]


def all_ways(llm: LLM, prompt: list[int]) -> list[list[int]]:
    """Return the output of every kind of call."""

    async def together() -> list[list[int]]:
        one, other = await asyncio.gather(llm.agenerate([prompt], SHORT), streamed(llm, prompt))
        return [one[0].token_ids, other]

    by_thread: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: by_thread.append(llm.generate([prompt], SHORT)[0].token_ids)
    )
    thread.start()
    thread.join()
    alone = llm.generate([prompt], SHORT)[0].token_ids
    chunks = [token for chunk in llm.stream(prompt, SHORT) for token in chunk.token_ids]
    return [alone, *asyncio.run(together()), *by_thread, chunks]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_child_can_make_every_kind_of_call(pair: Pair, drafter: str) -> None:
    llm, prompt = pair.engine(drafter), pair.prompts[0]
    want = repr([pair.answers[0][:12]] * 5)
    assert repr(all_ways(llm, prompt)) == want
    assert in_child(lambda: repr(all_ways(llm, prompt))) == want
    assert in_child(lambda: in_child(lambda: repr(all_ways(llm, prompt)))) == want  # a grandchild
    assert repr(all_ways(llm, prompt)) == want


def test_a_child_builds_drafters_for_requests(pair: Pair) -> None:
    llm, params = pair.engine("none"), SamplingParams(12, speculation="prompt_lookup")
    asyncio.run(llm.agenerate([pair.prompts[0]], SamplingParams(12, speculation="lookahead")))
    found = in_child(
        lambda: repr(asyncio.run(llm.agenerate([pair.prompts[0]], params))[0].token_ids)
    )
    assert found == repr(pair.answers[0][:12])


def test_an_app_used_before_a_fork_works_in_the_child(pair: Pair, tokenizer: Any) -> None:
    app = create_app(LLM(pair.target, "prompt_lookup", tokenizer=tokenizer))

    def ask() -> str:
        async def post() -> str:
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app), base_url="http://model"
            ) as client:
                body = {"prompt": pair.prompts[0], "max_tokens": 8, "temperature": 0}
                answers = [
                    await client.post("/v1/completions", json=body),
                    await client.post("/v1/completions", json=body),
                ]
                return repr(
                    [
                        (answer.status_code, answer.json()["choices"][0]["text"])
                        for answer in answers
                    ]
                )

        return asyncio.run(post())

    want = ask()
    assert want.count("200") == 2
    assert in_child(ask) == want


def test_a_strategy_works_in_a_child(pair: Pair) -> None:
    strategy, ids = Strategy("prompt_lookup"), torch.tensor([pair.prompts[0]])

    def ask() -> str:
        out = pair.target.generate(
            ids, custom_generate=strategy, max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        return repr(out[0, ids.shape[1] :].tolist())

    assert ask() == in_child(ask) == repr(pair.answers[0][:12])


@contextmanager
def paused_step(llm: LLM, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold another thread in the middle of a forward pass."""
    inside, leave, forward = threading.Event(), threading.Event(), llm.model.forward_nodes

    def held(*args: Any) -> NodeLogits:
        inside.set()
        leave.wait()
        return forward(*args)

    monkeypatch.setattr(llm.model, "forward_nodes", held)
    thread = threading.Thread(target=lambda: llm.generate([prompt], SHORT))
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize("call", ["generate", "agenerate", "stream", "app"])
def test_a_child_forked_during_a_step_is_refused(
    pair: Pair, tokenizer: Any, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(pair.target, "none", tokenizer=tokenizer)
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: llm.generate([pair.prompts[0]], SHORT),
        "agenerate": lambda: asyncio.run(llm.agenerate([pair.prompts[0]], SHORT)),
        "stream": lambda: list(llm.stream(pair.prompts[0], SHORT)),
        "app": lambda: _posted(llm, pair.prompts[0]),
    }
    with paused_step(llm, pair.prompts[1], monkeypatch):
        found = in_child(lambda: repr(calls[call]()))
    assert "forked while another thread used this model" in found
    assert "load the model in the child" in found
    assert llm.generate([pair.prompts[0]], SHORT)[0].token_ids == pair.answers[0][:12]


def _posted(llm: LLM, prompt: list[int]) -> str:
    async def post() -> str:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(create_app(llm)), base_url="http://model"
        ) as client:
            return (
                await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 8})
            ).text

    return asyncio.run(post())


def test_only_the_parent_continues_requests_open_at_the_fork(pair: Pair) -> None:
    llm = pair.engine("prompt_lookup", max_batch=2)
    streams = [llm.stream(prompt, SHORT) for prompt in pair.prompts[:3]]
    begun = [next(stream) for stream in streams[:2]]

    def ask() -> str:
        answer = llm.generate([pair.prompts[3]], SHORT)[0].token_ids
        assert llm.load.running == llm.load.waiting == 0
        try:
            return repr([*streams[0]])
        except Exception as error:
            return f"{answer}: {error}"

    found = in_child(ask)
    assert found.startswith(repr(pair.answers[3][:12]))
    assert "the parent answers it" in found
    for first, stream, answer in zip(begun, streams, pair.answers, strict=False):
        assert [
            *first.token_ids,
            *(token for chunk in stream for token in chunk.token_ids),
        ] == answer[:12]


def test_a_child_does_not_write_the_parents_live_outputs(tmp_path: Path) -> None:
    build(tmp_path / "store", [[1, 2, 3, 4]], vocab_size=16)
    with datastore.open(tmp_path / "store") as store:
        store.append([5, 6, 7, 8])

        def write() -> str:
            store.append([9, 10, 11, 12])
            store.close()
            return "closed"

        assert in_child(write) == "closed"
        store.flush()
        store.refresh()
        assert sum(shard.info.tokens for shard in store.snapshot.shards) == 12


def test_thread_pools_and_locks_work_after_a_fork() -> None:
    pool, lock = threads.Threads(1, "test"), threads.ForkableLock()
    assert pool.submit(len, "abc").result() == 3
    with lock:

        def use() -> str:
            with lock:
                return str(pool.submit(len, "abcd").result())

        assert in_child(use) == "4"
    pool.shutdown()


OPENMP = """
import torch
from paceline.util import threads
from tests.support.forking import in_child
heat = torch.ones(500, 500)
ask = lambda: str((heat @ heat).exp().shape)
assert ask() == in_child(ask) == ask()
"""
BY_NAME = """
import asyncio
from paceline import LLM, SamplingParams
from tests.support.forking import in_child
llm, params = LLM("demo"), SamplingParams(8)
def ask():
    outs = (*llm.generate("def add", params), *asyncio.run(llm.agenerate("def add", params)))
    return repr([out.token_ids for out in outs])

assert ask() == in_child(ask) == ask()
"""


@pytest.mark.parametrize("code", [OPENMP, pytest.param(BY_NAME, marks=pytest.mark.slow)])
def test_a_child_of_a_multithreaded_process_works(code: str) -> None:
    """The threads of OpenMP do not survive a fork."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(__file__).parents[1],
        env=environment,
        timeout=120,
    )
