"""Test that recurrent and hybrid models answer as `generate` does.

Drafts, batches, prompt chunks and preemption must not change the answers.
"""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import pytest

from paceline import LLM, DraftTree, SamplingParams, ScriptedDrafter
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.engine.engine import Engine
from paceline.errors import CapacityError, ConfigError
from tests.support import models
from tests.support.drafters import ScriptedTree
from tests.support.recurrent_models import BRANCHING, CHAINED, WINDOWED
from tests.support.shared import reference
from tests.support.tree_models import VOCAB

COUNT = 16
PARAMS = SamplingParams(max_new_tokens=COUNT, ignore_eos=True)
WITHOUT_ATTENTION = ("mamba", "mamba2", "falcon_mamba")
FAST = ("lfm2", "qwen3_5", "granitemoehybrid", "nemotron_h", "zaya")
ALL = (*BRANCHING, *WINDOWED, *CHAINED)
SIZES = [
    *((name, 5) for name in FAST),
    *(pytest.param(name, 20, marks=pytest.mark.slow) for name in ALL),
]


@functools.cache
def make(name: str) -> Any:
    """Return a model without end-of-sequence tokens."""
    model = copy.deepcopy(models.make(name, "eager" if name in WITHOUT_ATTENTION else "sdpa"))
    model.generation_config.eos_token_id = None
    return model


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Return random prompts of 2 to 40 tokens."""
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(2, 40))] for _ in range(count)]


@functools.cache
def known_answers(name: str, count: int, seed: int = 0) -> dict[tuple[int, ...], list[int]]:
    """Return the answers of `generate` by prompt."""
    return {tuple(prompt): reference(make(name), prompt, COUNT) for prompt in prompts(count, seed)}


def random_trees() -> Drafter:
    """Return a drafter whose random trees are almost always wrong."""
    rng = random.Random(3)

    def tree(limit: int) -> DraftTree:
        size = min(limit, rng.randrange(8))
        tokens = rng.sample(range(VOCAB), size)
        return DraftTree(tokens, [rng.randrange(-1, node) if node else -1 for node in range(size)])

    return ScriptedDrafter(lambda requests, limits: [tree(limit) for limit in limits])


@pytest.mark.parametrize(("name", "count"), SIZES)
def test_drafts_do_not_change_answers_in_ragged_batches(name: str, count: int) -> None:
    known = known_answers(name, count)
    for drafter in ("none", ScriptedTree(known, VOCAB), random_trees()):
        llm = LLM(make(name), drafter, max_batch=4)
        llm.model.prefill_chunk = 7
        outs = llm.generate([list(prompt) for prompt in known], PARAMS)
        assert [out.token_ids for out in outs] == [*known.values()]
        if isinstance(drafter, ScriptedTree):
            assert sum(out.stats.target_forwards for out in outs) < count * COUNT


CORE = ("lfm2", "granitemoehybrid", "nemotron_h", "zaya")


def every_type(*fast: str) -> list[Any]:
    """Return all recurrent types; those that are not in `fast` are slow."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in ALL]


@pytest.mark.parametrize("chunk", [1, 64])
@pytest.mark.parametrize("name", every_type(*CORE))
def test_prompts_in_chunks_give_the_same_answers(name: str, chunk: int) -> None:
    known = known_answers(name, 3)
    llm = LLM(make(name), ScriptedTree(known, VOCAB), max_batch=2)
    llm.model.prefill_chunk = chunk
    outs = llm.generate([list(prompt) for prompt in known], PARAMS)
    assert [out.token_ids for out in outs] == [*known.values()]


@pytest.mark.parametrize("name", every_type(*CORE, "inkling"))
def test_no_token_is_fed_twice(name: str) -> None:
    known = known_answers(name, 3)
    engine = Engine(make(name), ScriptedTree(known, VOCAB), max_batch=3)
    requests = [Request(list(prompt), PARAMS) for prompt in known]
    handles = engine.submit(requests)
    while engine.unfinished:
        engine.step()
        decoding = [each for each in requests if each.output_ids and not each.finish_reason]
        assert all(request.pending == 1 for request in decoding)
    assert all(handle.done for handle in handles)
    assert [request.output_ids for request in requests] == [*known.values()]


@pytest.mark.parametrize("name", every_type(*CORE))
def test_conversations_reuse_the_held_states(name: str) -> None:
    model = make(name)
    llm = LLM(model, "prompt_lookup", keep_prefixes=4, max_batch=2)
    text, reused = prompts(1, seed=5)[0] + [7] * 20, []
    for turn in range(4):
        (out,) = llm.generate([text], PARAMS)
        assert out.token_ids == reference(model, text, COUNT)
        reused.append(out.stats.cached_tokens)
        text = [*text, *out.token_ids, *range(3, 9 + turn)]
    assert reused[0] == 0
    assert all(count > 0 for count in reused[1:])


@pytest.mark.parametrize("name", every_type(*CORE))
def test_answers_to_one_prompt_reuse_its_final_state(name: str) -> None:
    model, (prompt,) = make(name), prompts(1, seed=6)
    prompt += [7] * 20
    texts = [prompt, *([*prompt, *ending] for ending in ([5, 6, 7], [9, 8], [3]))]
    texts.append([*prompt[:-2], 4, 4, 4])  # no state fits the shared tokens
    known = {tuple(text): reference(model, text, COUNT) for text in texts}
    llm = LLM(model, ScriptedTree(known, VOCAB), keep_prefixes=4)
    reused = []
    for text in texts:
        (out,) = llm.generate([text], PARAMS)
        assert out.token_ids == known[tuple(text)]
        reused.append(out.stats.cached_tokens)
    assert reused == [0, *[len(prompt)] * 3, 0]


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("name", every_type(*CORE))
def test_preempted_requests_continue_with_the_same_answer(name: str, kept: int) -> None:
    known = known_answers(name, 4)
    drafter = ScriptedTree(known, VOCAB)
    engine = Engine(make(name), drafter, max_batch=2, keep_prefixes=kept)
    requests = [
        Request(
            list(prompt),
            SamplingParams(max_new_tokens=COUNT, ignore_eos=True, priority=int(number < 2)),
        )
        for number, prompt in enumerate(known)
    ]
    handles = engine.submit(requests[:2])
    for _ in range(3):
        engine.step()
    engine.finish([*handles, *engine.submit(requests[2:])])
    assert [request.output_ids for request in requests] == [*known.values()]
    assert engine.load.preemptions > 0


@pytest.mark.parametrize("name", every_type(*CORE[:2]))
def test_closed_stream_leaves_no_state_in_its_slot(name: str) -> None:
    known = known_answers(name, 3)
    llm = LLM(make(name), "none", max_batch=1)
    stream = llm.stream([11] * 30, PARAMS)
    next(stream)
    stream.close()
    assert llm.load.aborted == 1
    outs = llm.generate([list(prompt) for prompt in known], PARAMS)
    assert [out.token_ids for out in outs] == [*known.values()]


def test_batch_invariance_reports_why_it_is_off() -> None:
    llm = LLM(make("lfm2"), "none", batch_invariant="auto")
    assert not llm.invariance.on
    assert "has 1 recurrent layers, and 'auto' tries" in llm.invariance.reason
    unknown = copy.deepcopy(make("lfm2"))
    unknown.model.layers[0].conv.activation = "unknown"
    with pytest.raises(ConfigError, match="1 of its layers are recurrent, and paceline does not"):
        LLM(unknown, "none", batch_invariant=True)


@pytest.mark.parametrize("keep_prefixes", [0, 1])
@pytest.mark.parametrize("name", ["granitemoehybrid", "mamba2", "lfm2"])
def test_cache_without_space_for_a_request_is_refused(name: str, keep_prefixes: int) -> None:
    options: Any = {"max_batch": 2, "keep_prefixes": keep_prefixes}
    with pytest.raises(ConfigError, match=r"cache_gib: got .* at least") as error:
        LLM(make(name), "none", cache_gib=1e-6, **options)
    smallest = float(str(error.value).split("at least ")[1].split(",")[0])
    llm = LLM(make(name), "none", cache_gib=smallest, **options)
    (out,) = llm.generate([[3]], SamplingParams(max_new_tokens=1))
    assert out.stats.new_tokens == 1
    with pytest.raises(ConfigError, match="cache_gib: got"):
        LLM(make(name), "none", cache_gib=0.8 * smallest, **options)


def test_cache_without_space_for_long_requests_refuses_them() -> None:
    model = make("granitemoehybrid")
    target = LLM(model, "none").model
    limit = (target.state_bytes + 40 * target.position_bytes) / 2**30
    llm = LLM(model, "none", max_batch=2, cache_gib=limit)
    with pytest.raises(CapacityError, match="expected at most 8, the limit of the cache's memory"):
        llm.generate([[3, 4, 5]], PARAMS)


def test_least_recently_used_checkpoints_are_dropped() -> None:
    model, texts = make("lfm2"), [[token] * 24 for token in (3, 5, 7)]
    llm = LLM(model, "none", keep_prefixes=8)
    checkpoints = llm.model.slots.checkpoints
    checkpoints.max_bytes = 2 * llm.model.state_bytes
    for text in texts:
        llm.generate([text], PARAMS)
    reused = [llm.generate([[*text, 9]], PARAMS)[0].stats.cached_tokens for text in texts[::-1]]
    assert reused[0] == 24
    assert 0 in reused


@pytest.mark.parametrize("spec", ["draft_model", "draft_model:stop_rule=heuristic"])
@pytest.mark.parametrize("name", CORE[:2])
def test_recurrent_draft_model_is_accepted(name: str, spec: str) -> None:
    known = known_answers(name, 3)
    llm = LLM(make(name), spec, draft_model=copy.deepcopy(make(name)), max_batch=2)
    outs = llm.generate([list(prompt) for prompt in known], PARAMS)
    assert [out.token_ids for out in outs] == [*known.values()]
    assert sum(out.stats.accepted_tokens for out in outs) > COUNT
