"""Test coroutines: batches, an event loop that is never blocked, and progress."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline import LLM, Chunk, SamplingParams
from paceline.core.node_logits import NodeLogits
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.request_handle import CallProgress
from paceline.errors import ConfigError
from tests.support.shared import COUNT, Pair

PARAMS = SamplingParams(COUNT)


@pytest.fixture
def llm(pair: Pair) -> LLM:
    return pair.engine("prompt_lookup", max_batch=6)


async def streamed(llm: LLM, prompt: list[int], params: SamplingParams = PARAMS) -> list[Chunk]:
    return [chunk async for chunk in llm.astream(prompt, params)]


def count_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of requests of every forward pass."""
    rows: list[int] = []
    forward = llm.model.forward_nodes

    def counted(requests: Any, *args: Any) -> NodeLogits:
        rows.append(len(requests))
        return forward(requests, *args)

    monkeypatch.setattr(llm.model, "forward_nodes", counted)
    return rows


def test_answers_and_streams_share_a_batch(
    pair: Pair, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step gives a stream one chunk, even while threads call the engine."""
    rows = count_steps(llm, monkeypatch)

    async def run() -> tuple[list[Any], list[list[Chunk]]]:
        answers = asyncio.gather(*[llm.agenerate([prompt], PARAMS) for prompt in pair.prompts[:3]])
        streams = asyncio.gather(*[streamed(llm, prompt) for prompt in pair.prompts[3:6]])
        return [outs[0] for outs in await answers], await streams

    answers, streams = asyncio.run(run())
    assert [out.token_ids for out in answers] == pair.answers[:3]
    for chunks, answer in zip(streams, pair.answers[3:6], strict=True):
        assert [token for chunk in chunks for token in chunk.token_ids] == answer
        assert [chunk.completion is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [
            True
        ]
    assert max(rows) == 6
    assert len(rows) < 2 * COUNT
    with ThreadPoolExecutor(2) as threads:
        others = [threads.submit(llm.generate, [prompt], PARAMS) for prompt in pair.prompts[6:9]]
        again, _ = asyncio.run(run())
        assert [one.result()[0].token_ids for one in others] == pair.answers[6:9]
    assert [out.token_ids for out in again] == pair.answers[:3]
    assert llm.model.open_sequences == 0


def test_the_event_loop_is_never_blocked(
    pair: Pair, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each forward pass waits until the event loop has run once more."""
    forward, ticked, in_time = llm.model.forward_nodes, threading.Event(), list[bool]()

    def slow(*args: Any) -> NodeLogits:
        ticked.clear()
        in_time.append(ticked.wait(60))
        return forward(*args)

    monkeypatch.setattr(llm.model, "forward_nodes", slow)

    async def run() -> None:
        task = asyncio.ensure_future(llm.agenerate(pair.prompts[:2], SamplingParams(4)))
        while not task.done():
            await asyncio.sleep(0.005)
            ticked.set()

    asyncio.run(run())
    assert len(in_time) >= 4
    assert all(in_time)


def test_cancelled_and_closed_calls_free_their_requests(pair: Pair, llm: LLM) -> None:
    async def run() -> list[int]:
        other = asyncio.ensure_future(llm.agenerate(pair.prompts[:1], PARAMS))
        task = asyncio.ensure_future(llm.agenerate(pair.prompts, PARAMS))
        stream = llm.astream(pair.prompts[1], PARAMS)
        await anext(stream)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stream.aclose()
        return (await other)[0].token_ids

    assert asyncio.run(run()) == pair.answers[0]
    assert llm.model.open_sequences == 0


@pytest.fixture
def building(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Slow down building drafters for requests.

    Returns an event that is set when the first build begins, and one for which all builds wait.
    """
    make, begun, may_finish = llm._engine._drafters._make, threading.Event(), threading.Event()

    def slow(spec: str) -> Any:
        begun.set()
        may_finish.wait(20)
        return make(spec)

    monkeypatch.setattr(llm._engine._drafters, "_make", slow)
    return begun, may_finish


def test_requests_do_not_wait_for_drafters_of_others(
    pair: Pair, llm: LLM, building: tuple[threading.Event, threading.Event]
) -> None:
    """Check this with more waiting callers than an event loop has threads."""
    begun, may_finish = building

    async def run() -> None:
        waiting = [
            asyncio.ensure_future(
                llm.agenerate(
                    [pair.prompts[1]], SamplingParams(COUNT, speculation=f"pia:max_nodes={nodes}")
                )
            )
            for nodes in range(1, 41)
        ]
        while not begun.is_set():
            await asyncio.sleep(0.01)
        assert (await llm.agenerate([pair.prompts[0]], PARAMS))[0].token_ids == pair.answers[0]
        assert not any(one.done() for one in waiting)
        for one in waiting[2:]:
            one.cancel()
        may_finish.set()
        assert [(await one)[0].token_ids for one in waiting[:2]] == [pair.answers[1]] * 2
        await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(ConfigError, match="speculation"):
            await llm.agenerate(
                [pair.prompts[0]],
                SamplingParams(
                    COUNT, speculation="prompt_lookup:max_draft_tokens=3,max_draft_tokens=4"
                ),
            )

    asyncio.run(asyncio.wait_for(run(), 60))


def test_cancelling_while_a_drafter_is_built_frees_the_request(
    pair: Pair, llm: LLM, building: tuple[threading.Event, threading.Event]
) -> None:
    begun, may_finish = building

    async def run() -> None:
        gone = asyncio.ensure_future(
            llm.agenerate(pair.prompts[:2], SamplingParams(COUNT, speculation="pia:max_nodes=2"))
        )
        while not begun.is_set():
            await asyncio.sleep(0.01)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        may_finish.set()
        while llm.load.aborted < 2:
            await asyncio.sleep(0.01)
        assert (await llm.agenerate([pair.prompts[0]], PARAMS))[0].token_ids == pair.answers[0]

    asyncio.run(asyncio.wait_for(run(), 60))
    assert llm.load.running == llm.load.waiting == llm.model.open_sequences == 0


def test_errors_reach_only_their_caller(pair: Pair, llm: LLM) -> None:
    def breaks(ids: Tensor, scores: Tensor) -> Tensor:
        return scores if ids.shape[1] < len(pair.prompts[1]) + 3 else scores - torch.inf

    bad = SamplingParams(COUNT, logits_processors=[breaks])

    async def run() -> list[Any]:
        calls: list[Any] = [
            llm.agenerate([pair.prompts[row]], one) for row, one in enumerate([PARAMS, bad])
        ]
        calls.append(streamed(llm, pair.prompts[1], bad))
        with pytest.raises(ConfigError, match="prompt 0: got no token"):
            await llm.agenerate([[]], PARAMS)
        return list(await asyncio.gather(*calls, return_exceptions=True))

    outs, *errors = asyncio.run(run())
    assert outs[0].token_ids == pair.answers[0]
    assert [type(error) for error in errors] == [ConfigError] * 2
    assert llm.model.open_sequences == 0


def test_only_callers_with_news_wake_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this with many requests waiting for a slot."""
    llm, waits, wait = pair.engine("prompt_lookup", max_batch=2), [], AsyncEngine._wait_for_news

    async def counted(self: AsyncEngine, handles: Any) -> None:
        waits.append(len(handles))
        await wait(self, handles)

    monkeypatch.setattr(AsyncEngine, "_wait_for_news", counted)

    async def run() -> list[list[Chunk]]:
        return await asyncio.gather(
            *[streamed(llm, prompt, SamplingParams(8)) for prompt in pair.prompts * 8]
        )

    streams = asyncio.run(run())
    texts = [[token for chunk in chunks for token in chunk.token_ids] for chunks in streams]
    assert texts == [answer[:8] for answer in pair.answers] * 8
    assert len(waits) <= sum(map(len, streams)) + len(streams)


def test_a_failed_step_raises_for_all_callers(
    pair: Pair, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise ConfigError("got no step; expected one. Do nothing.")

    async def run() -> list[Any]:
        with monkeypatch.context() as patched:
            patched.setattr(llm._engine, "step", broken)
            calls = [llm.agenerate([prompt], PARAMS) for prompt in pair.prompts[:2]]
            errors = await asyncio.gather(
                *calls, streamed(llm, pair.prompts[2]), return_exceptions=True
            )
        assert (await llm.agenerate([pair.prompts[0]], PARAMS))[0].token_ids == pair.answers[0]
        return errors

    assert [str(error)[:11] for error in asyncio.run(run())] == ["got no step"] * 3
    assert llm.model.open_sequences == 0


def test_progress_is_reported_after_every_step(pair: Pair, llm: LLM) -> None:
    """Progress is reported after every step, never decreases and ends complete."""
    seen: list[CallProgress] = []
    params = [SamplingParams(5, 1.0, n=2), *[PARAMS] * 7]
    outs = llm.generate(pair.prompts[:8], params, progress=seen.append)
    assert [out.token_ids for out in outs[1:]] == pair.answers[1:8]
    assert seen == sorted(seen, key=lambda one: (one.new_tokens, one.finished))
    assert seen[-1] == CallProgress(9, 9, 10 + 7 * COUNT)
    assert len(seen) > 10


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_progress_that_raises_ends_the_call(
    pair: Pair, llm: LLM, error: type[BaseException]
) -> None:
    def stop(progress: CallProgress) -> None:
        if progress.new_tokens > 20:
            raise error("enough")

    check: Callable[[CallProgress], None] = stop
    with pytest.raises(error, match="enough"):
        llm.generate(pair.prompts, PARAMS, progress=check)
    assert llm.model.open_sequences == 0
    assert llm.generate(pair.prompts[:1], PARAMS)[0].token_ids == pair.answers[0]
