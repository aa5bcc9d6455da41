"""Test one engine with several callers: they share batches, and errors stay separate."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline import LLM, Drafter, DraftTree, Outcome, SamplingParams
from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.node_rule import NodeRule, node_limit
from paceline.core.request import Request
from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.model.self_check import plain_logits
from paceline.model.transformers_target import as_cached_lm
from tests.support.shared import COUNT, Pair

LONG = SamplingParams(max_new_tokens=COUNT)


class RecordsBatchSizes(DelegatingDrafter):
    """Drafter wrapper that records the batch size of every proposal."""

    def __init__(self, inner: Drafter, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(inner)
        self.sizes: list[int] = []
        self._before = before

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        self.sizes.append(len(requests))
        self._before()
        return super().propose(requests, max_nodes)


@pytest.mark.parametrize("spec", ["none", "prompt_lookup", "lookahead", "draft_model"])
def test_threads_and_a_stream_share_the_batch(pair: Pair, spec: str) -> None:
    llm = LLM(pair.target, RecordsBatchSizes(pair.engine(spec).drafter), max_batch=4)
    stream = llm.stream(pair.prompts[0], LONG)
    chunks = [next(stream)]
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(llm.generate, pair.prompts[first::2], LONG) for first in (0, 1)]
        chunks += stream
        answers = [job.result() for job in jobs]
    assert [token for chunk in chunks for token in chunk.token_ids] == pair.answers[0]
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.token_ids == pair.answers[0]
    for first, outs in enumerate(answers):
        assert [out.token_ids for out in outs] == pair.answers[first::2]
    assert isinstance(llm.drafter, RecordsBatchSizes)
    assert 1 < max(llm.drafter.sizes) <= 4
    assert llm.model.open_sequences == 0


def test_stream_continues_while_its_thread_generates(pair: Pair) -> None:
    llm = pair.engine("prompt_lookup", max_batch=2)
    stream = llm.stream(pair.prompts[0], LONG)
    first = next(stream)
    assert [out.token_ids for out in llm.generate(pair.prompts[1:4], LONG)] == pair.answers[1:4]
    assert [
        *first.token_ids,
        *(token for chunk in stream for token in chunk.token_ids),
    ] == pair.answers[0]
    assert llm.model.open_sequences == 0


def test_idle_stream_blocks_no_one_and_frees_its_slot(pair: Pair) -> None:
    llm = pair.engine("none", max_batch=1)
    stream = llm.stream(pair.prompts[0], SamplingParams(max_new_tokens=4 * COUNT))
    next(stream)
    # There is one slot: generate waits until the stream's answer is complete, and runs its steps.
    assert llm.generate([pair.prompts[1]], LONG)[0].token_ids == pair.answers[1]
    stream.close()
    other = llm.stream(pair.prompts[2], SamplingParams(max_new_tokens=4 * COUNT))
    next(other)
    other.close()
    assert llm.model.open_sequences == 0
    assert llm.generate([pair.prompts[1]], LONG)[0].token_ids == pair.answers[1]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_its_own_call_after_the_shared_step(pair: Pair) -> None:
    steps = 0

    def interrupt() -> None:
        nonlocal steps
        steps += 1
        if steps == 12:
            assert threading.current_thread() is threading.main_thread()
            os.kill(os.getpid(), signal.SIGINT)

    llm = LLM(pair.target, RecordsBatchSizes(create("none"), interrupt), max_batch=4)
    other = llm.stream(pair.prompts[1], LONG)
    chunks = [next(other)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate([pair.prompts[0]], LONG)
    assert llm.model.open_sequences == 1
    chunks += other
    assert [token for chunk in chunks for token in chunk.token_ids] == pair.answers[1]
    assert llm.model.open_sequences == 0
    assert llm.generate([pair.prompts[0]], LONG)[0].token_ids == pair.answers[0]


def test_stream_collected_in_a_step_ends_after_it(pair: Pair) -> None:
    held: list[Any] = []
    llm = LLM(
        pair.target, RecordsBatchSizes(create("prompt_lookup"), lambda: held.clear()), max_batch=4
    )
    stream = llm.stream(pair.prompts[1], LONG)
    next(stream)
    held.append(stream)
    del stream  # the next proposal drops the last reference
    assert llm.generate([pair.prompts[0]], LONG)[0].token_ids == pair.answers[0]
    assert llm.model.open_sequences == 0


def test_drafter_cannot_call_its_own_engine(pair: Pair) -> None:
    def generate_inside() -> None:
        llm.generate([[1, 2]])

    llm = LLM(pair.target, RecordsBatchSizes(create("none"), generate_inside))
    with pytest.raises(ConfigError, match="from inside a step of the same engine"):
        llm.generate([pair.prompts[0]], LONG)
    assert llm.model.open_sequences == 0


def test_max_batch_holds_over_all_callers(pair: Pair) -> None:
    llm = LLM(pair.target, RecordsBatchSizes(create("none")), max_batch=3)
    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(lambda prompt: llm.generate([prompt, prompt], LONG), pair.prompts[:4])
        )
    for outs, answer in zip(found, pair.answers, strict=False):
        assert [out.token_ids for out in outs] == [answer, answer]
    assert isinstance(llm.drafter, RecordsBatchSizes)
    assert max(llm.drafter.sizes) <= 3


def test_drafter_changes_between_requests_only(pair: Pair) -> None:
    llm = pair.engine("none")
    stream = llm.stream(pair.prompts[0], LONG)
    next(stream)
    with pytest.raises(
        ConfigError, match="got 'prompt_lookup' while 1 requests are open; expected none"
    ):
        llm.change_drafter(create("prompt_lookup"))
    stream.close()
    llm.change_drafter(create("prompt_lookup"))
    assert llm.drafter.name == "prompt_lookup"
    assert llm.generate([pair.prompts[0]], LONG)[0].token_ids == pair.answers[0]


def test_node_rules() -> None:
    assert [node_limit(NodeRule(), count, 40) for count in (1, 8)] == [40, 40]
    assert [
        node_limit(NodeRule(24, batch_nodes=24, min_nodes=3), count, 256)
        for count in (1, 2, 3, 8, 64)
    ] == [24, 12, 8, 3, 3]
    assert [
        node_limit(NodeRule(batch_nodes=64, min_nodes=12), count, 256) for count in (1, 2, 4, 8)
    ] == [
        256,
        32,
        16,
        12,
    ]
    assert [
        node_limit(NodeRule(24, batch_nodes=24, min_nodes=3), count, 2) for count in (1, 8)
    ] == [2, 2]


class TopTokenDrafter(Drafter):
    """Drafter that requests the target's top tokens after every node."""

    name, top_k = "curious", 3

    def __init__(self) -> None:
        self.seen: list[Outcome] = []

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [DraftTree([1, 2, 3], [-1, 0, -1]) for _ in requests]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self.seen += outcomes


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_top_tokens_after_every_node(pair: Pair, temperature: float) -> None:
    drafter = TopTokenDrafter()
    LLM(pair.target, drafter, max_batch=2).generate(
        pair.prompts[:3],
        SamplingParams(max_new_tokens=6, temperature=temperature, repetition_penalty=1.2),
    )
    firsts: dict[int, Outcome] = {}  # each request's first outcome, whose text is the prompt
    for outcome in drafter.seen:
        firsts.setdefault(outcome.request.id, outcome)
    plain = LLM(pair.target, "none").model
    for outcome, prompt in zip(firsts.values(), pair.prompts[:3], strict=True):
        assert outcome.target_top is not None
        assert outcome.target_top.token_ids.shape == outcome.target_top.probs.shape == (4, 3)
        for row, path in enumerate([[], [1], [1, 2], [3]]):
            best = plain_logits(as_cached_lm(plain), prompt + path)[0].float().softmax(-1).topk(3)
            assert outcome.target_top.token_ids[row].tolist() == best.indices.tolist()
            assert outcome.target_top.probs[row] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_no_top_tokens_without_a_request_for_them(pair: Pair) -> None:
    seen: list[Outcome] = []

    class NoTopTokens(TopTokenDrafter):
        name, top_k = "quiet", 0

        def observe(self, outcomes: Sequence[Outcome]) -> None:
            seen.extend(outcomes)

    LLM(pair.target, NoTopTokens()).generate(pair.prompts[:1], SamplingParams(max_new_tokens=4))
    assert seen
    assert all(outcome.target_top is None for outcome in seen)


def test_sharing_needs_fewer_forwards_than_turns(pair: Pair) -> None:
    """Count the forward passes of two callers together, instead of timing them."""
    both = threading.Event()

    def wait_for_both_callers() -> None:
        while not both.is_set() and llm.load.waiting + llm.load.running < 2:
            time.sleep(0.001)
        both.set()

    llm = LLM(pair.target, RecordsBatchSizes(create("none"), wait_for_both_callers), max_batch=8)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda prompt: llm.generate([prompt], LONG), pair.prompts[:2]))
    assert isinstance(llm.drafter, RecordsBatchSizes)
    assert len(llm.drafter.sizes) < 2 * COUNT
