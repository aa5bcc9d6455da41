"""Test the KV cache's memory: capacity, waiting requests, preemption and prefix caching."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from paceline import LLM, DraftTree, SamplingParams
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.draft_budget.prefill_chunking import PrefillChunkController
from paceline.engine.engine import Engine
from paceline.errors import CapacityError, ConfigError, UnsupportedModelError
from tests.support.models import make

LONG = SamplingParams(max_new_tokens=60, ignore_eos=True)
SPECS = (
    "none",
    "prompt_lookup",
    "sssd",
    "lookahead:window=3,ngram=3",
    "token_recycling:budget=false",
)


def prompts(count: int, length: int = 20) -> list[list[int]]:
    return [
        [(7 * place + 3 * token * token) % 60 + 2 for token in range(length)]
        for place in range(count)
    ]


_answers_alone: dict[tuple[Any, ...], list[int]] = {}


def answers_alone(
    model: Any, each: list[list[int]], params: SamplingParams = LONG
) -> list[list[int]]:
    for prompt in each:
        if (*prompt, params) not in _answers_alone:
            _answers_alone[*prompt, params] = (
                LLM(model, "none").generate([prompt], params)[0].token_ids
            )
    return [_answers_alone[*prompt, params] for prompt in each]


def gib_for_slots(llm: LLM, slots: int, positions: int) -> float:
    return slots * positions * llm.model.position_bytes / (1 << 30)


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama", "sdpa")


@pytest.mark.parametrize(("spec", "kept"), [*((spec, 0) for spec in SPECS), ("sssd", 3)])
def test_preempted_answers_keep_their_text(model: Any, spec: str, kept: int) -> None:
    each = prompts(3)
    limit = gib_for_slots(LLM(model, "none"), 2, 184)
    params = SamplingParams(max_new_tokens=170, ignore_eos=True)
    llm = LLM(model, spec, max_batch=3, cache_gib=limit, keep_prefixes=kept)
    outs = llm.generate(each, params)
    assert [out.token_ids for out in outs] == answers_alone(model, each, params)
    assert llm.load.preemptions > 0
    assert llm.load.waiting == llm.load.running == 0
    assert llm.model.open_sequences == llm.load.kept_requests <= kept


def test_sampled_text_survives_preemption(model: Any) -> None:
    each = prompts(2)
    params = SamplingParams(max_new_tokens=170, ignore_eos=True, temperature=0.9, seed=5)
    llm = LLM(model, "sssd", max_batch=4, cache_gib=gib_for_slots(LLM(model, "none"), 2, 184))
    outs = llm.generate(each, params)
    assert llm.load.preemptions > 0
    assert [out.token_ids for out in outs] == answers_alone(model, each, params)


def test_request_too_long_for_the_cache_is_refused(model: Any) -> None:
    llm = LLM(model, "none", cache_gib=gib_for_slots(LLM(model, "none"), 1, 100))
    with pytest.raises(CapacityError, match="up to 120 tokens; expected at most 68"):
        llm.generate(prompts(2), SamplingParams(max_new_tokens=100))
    assert (
        llm.generate(prompts(1), SamplingParams(max_new_tokens=40, ignore_eos=True))[
            0
        ].stats.new_tokens
        == 40
    )


@pytest.mark.parametrize("value", [0, -1.0, "4", True, float("nan")])
def test_memory_must_be_a_positive_number(model: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match="cache_gib: got"):
        LLM(model, "none", cache_gib=value)


def test_memory_must_hold_the_shortest_request(model: Any) -> None:
    least = gib_for_slots(LLM(model, "none"), 1, 34)
    LLM(model, "none", cache_gib=least).generate([[3]], SamplingParams(max_new_tokens=1))
    with pytest.raises(ConfigError, match="the memory for a request of 2 tokens"):
        LLM(model, "none", cache_gib=0.9 * least)


def test_full_cache_makes_requests_wait(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model, "none", max_batch=4)
    resize = llm.model.slots.resize

    def resize_up_to_two(slots: int, positions: int) -> None:
        if slots > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        resize(slots, positions)

    monkeypatch.setattr(llm.model.slots, "resize", resize_up_to_two)
    each = prompts(4)
    assert [out.token_ids for out in llm.generate(each, LONG)] == answers_alone(model, each)
    assert len(llm.model.slots) == 2


def test_priority_preempts_and_the_request_resumes(model: Any) -> None:
    each = prompts(3)
    engine = Engine(model, LLM(model, "none").drafter, max_batch=1)
    params = [
        SamplingParams(max_new_tokens=30, ignore_eos=True, priority=priority)
        for priority in (1, 1, 0)
    ]
    requests = [Request(prompt, one) for prompt, one in zip(each, params, strict=True)]
    first, second = engine.submit(requests[:2])
    for _ in range(5):
        engine.step()
    (urgent,) = engine.submit(requests[2:])
    while not urgent.done:
        engine.step()
    assert not first.done
    assert 5 <= len(requests[0].output_ids) < 30
    while not first.done:
        engine.step()
    assert not second.request.output_ids  # of equal priorities, the older request resumes first
    engine.finish([second])
    assert [request.output_ids for request in requests] == answers_alone(model, each, params[0])
    assert engine.load.preemptions == 1


@pytest.mark.parametrize("spec", SPECS)
def test_next_turn_feeds_only_new_tokens(model: Any, spec: str) -> None:
    llm = LLM(model, spec, keep_prefixes=2)
    (first,) = prompts(1, 40)
    answer = llm.generate([first], LONG)[0]
    turn = first + answer.token_ids + [5, 6, 7]
    again = llm.generate([turn], LONG)[0]
    assert again.token_ids == answers_alone(model, [turn])[0]
    assert again.stats.cached_tokens == len(first + answer.token_ids) - 1
    assert (
        sum(again.stats.query_tokens[: again.stats.prefill_forwards])
        <= 4 + sum(again.stats.query_tokens) - again.stats.new_tokens
    )
    assert llm.load.prefix_hits == again.stats.cached_tokens
    assert llm.load.kept_requests == 1  # it continued in the same slot


def test_prefix_of_a_running_request_is_copied(model: Any) -> None:
    system = [(11 * token) % 50 + 3 for token in range(64)]
    llm = LLM(model, "none", keep_prefixes=4)
    stream = llm.stream([*system, 3, 4, 5], LONG)
    next(stream)
    others = [[*system, 9, 8, place] for place in range(20, 23)]
    outs = llm.generate(others, LONG)
    assert [out.token_ids for out in outs] == answers_alone(model, others)
    assert all(out.stats.cached_tokens >= 64 for out in outs)
    list(stream)
    assert llm.load.running == 0
    assert llm.load.kept_requests == 4


def test_no_prefixes_are_kept_by_default(model: Any) -> None:
    llm = LLM(model, "none")
    (prompt,) = prompts(1, 40)
    for _ in range(2):
        assert llm.generate([prompt], LONG)[0].stats.cached_tokens == 0
    assert llm.model.open_sequences == 0


def test_kept_prefixes_make_room_for_requests(model: Any) -> None:
    llm = LLM(
        model,
        "none",
        max_batch=2,
        keep_prefixes=8,
        cache_gib=gib_for_slots(LLM(model, "none"), 3, 160),
    )
    for prompt in prompts(6, 30):
        llm.generate([prompt], LONG)
    kept = llm.load.kept_requests
    assert 1 <= kept < 6
    outs = llm.generate(prompts(2, 60), LONG)
    assert [out.token_ids for out in outs] == answers_alone(model, prompts(2, 60))
    assert 0.0 <= llm.load.cache_usage <= 1.0


class FailsAt(Drafter):
    """Drafter that fails in the given method."""

    name = "fails"

    def __init__(self, where: str) -> None:
        self._where, self.stopped = where, 0

    def start(self, request: Request) -> None:
        self._fail("start")

    def propose(self, requests: Any, max_nodes: Any) -> Any:
        self._fail("propose")
        return [DraftTree([5], [-1]) for _ in requests]

    def observe(self, outcomes: Any) -> None:
        self._fail("observe")

    def stop(self, request: Request) -> None:
        self.stopped += 1

    def _fail(self, where: str) -> None:
        if where == self._where:
            raise OSError(f"no {where}")


@pytest.mark.parametrize("where", ["start", "propose", "observe", "stop"])
def test_failing_drafter_falls_back_to_plain_decoding(
    model: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = FailsAt(where)
    llm = LLM(model, drafter, on_drafter_error="plain")
    each = prompts(3)
    outs = llm.generate(each, LONG)
    assert [out.token_ids for out in outs] == answers_alone(model, each)
    if where != "stop":
        assert llm.load.drafter_failures == drafter.stopped == 3
        assert all(out.stats.notes == {"drafter_failed": 1} for out in outs)
        assert "drafter 'fails' failed" in caplog.text
        with pytest.raises(OSError, match=where):
            LLM(model, FailsAt(where)).generate(each, LONG)


def test_long_prompt_does_not_stall_a_stream(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # otherwise the chunk size depends on timings
    monkeypatch.setattr(PrefillChunkController, "note_prompts", lambda self, tokens, seconds: None)
    llm = LLM(model, "none", max_batch=2)
    stream = llm.stream(prompts(1)[0], SamplingParams(max_new_tokens=100, ignore_eos=True))
    next(stream)
    (late,) = llm._engine.submit([Request(prompts(1, 400)[0], LONG)])
    fed = 0
    while late.prefilling:
        before = late.request.cached
        next(stream)
        assert (
            late.request.cached - before <= 16 + 1
        )  # one small chunk between two steps of the stream, and finally the first token
        fed += 1
    assert fed >= 400 // 16
    stream.close()
    llm._engine.finish([late])
    assert late.request.output_ids == answers_alone(model, prompts(1, 400))[0]


@pytest.mark.processor
@pytest.mark.parametrize("spec", ["none", "sssd", "token_recycling:budget=false"])
def test_bits_survive_preemption_and_reuse(spec: str) -> None:
    """Check bfloat16, where other prompt chunks change bits without batch invariance."""
    model = copy.deepcopy(make("llama", "sdpa")).to(torch.bfloat16)
    each = [prompt + [9] * place for place, prompt in enumerate(prompts(3, 70))]
    params = SamplingParams(max_new_tokens=170, ignore_eos=True)
    plain = LLM(model, "none", batch_invariant=True)
    expected = [plain.generate([prompt], params)[0].token_ids for prompt in each]
    limit = gib_for_slots(plain, 2, 236)
    llm = LLM(model, spec, batch_invariant=True, max_batch=3, cache_gib=limit, keep_prefixes=3)
    assert [out.token_ids for out in llm.generate(each, params)] == expected
    assert llm.load.preemptions > 0
    llm = LLM(model, spec, batch_invariant=True, max_batch=3, keep_prefixes=3)
    for _ in range(2):
        assert [out.token_ids for out in llm.generate(each, params)] == expected
    assert llm.load.prefix_hits > 3 * 68


def test_tensor_parallel_model_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_tp_size", 2, raising=False)
    with pytest.raises(UnsupportedModelError, match="split over 2 processes"):
        LLM(model, "none")


def test_prefill_chunk_follows_measured_times() -> None:
    pace = PrefillChunkController(512)
    assert pace.chunk == 16
    for _ in range(20):
        pace.note_decode(0.1)
        pace.note_prompts(pace.chunk, 0.001 * pace.chunk)
    assert 100 <= pace.chunk <= 130  # 1.25 decode steps
    for _ in range(20):
        pace.note_prompts(pace.chunk, 0.1 * pace.chunk)
    assert pace.chunk == 8
    for _ in range(30):
        pace.note_decode(10.0)
        pace.note_prompts(pace.chunk, 1e-5)
    assert pace.chunk == 512


def test_load_counters(model: Any) -> None:
    llm = LLM(model, "prompt_lookup:budget=false", max_batch=2)
    outs = llm.generate(prompts(3), LONG)
    stream = llm.stream(prompts(1)[0], LONG)
    next(stream)
    assert (llm.load.running, llm.load.waiting) == (1, 0)
    stream.close()
    load = llm.load
    assert (load.finished, load.aborted, load.running) == (3, 1, 0)
    assert load.prompt_tokens == 80
    assert load.drafted_tokens >= sum(out.stats.drafted_tokens for out in outs)
    assert load.new_tokens >= 181
    assert load.forwards > 0
