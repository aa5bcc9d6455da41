"""Test cache slots of different lengths: mixed loads, moves of regions and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.request import Request
from paceline.engine.engine import Engine
from paceline.kv_cache.region_cache import RegionCache
from paceline.model import cached_lm
from paceline.model.cached_lm import CachedLM
from paceline.model.transformers_target import as_cached_lm
from tests.engine.test_kv_cache_manager import prompts
from tests.model.test_fixed_shapes import run_steps
from tests.support.models import make
from tests.support.resident import needs_page_map, resident_bytes

LENGTHS = [8000] + [500] * 31
PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)
TOKENS = sum(LENGTHS) + len(LENGTHS) * PARAMS.max_new_tokens


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama_long", "sdpa")


def mixed_load() -> list[list[int]]:
    return [prompts(1, length)[0] for length in LENGTHS]


def run_mixed_load(model: Any, limit: float, **options: Any) -> tuple[int, Engine, list[list[int]]]:
    """Run the mixed load; return the peak of running requests, the engine and the answers."""
    position_bytes = LLM(model, "none").model.position_bytes
    llm = LLM(
        model, "none", max_batch=32, cache_gib=limit * TOKENS * position_bytes / 2**30, **options
    )
    engine, most = llm._engine, 0
    handles = engine.submit([Request(prompt, PARAMS) for prompt in mixed_load()])
    while not all(handle.done for handle in handles):
        engine.step()
        if not handles[0].done:
            most = max(most, engine.load.running)
    return most, engine, [handle.request.output_ids for handle in handles]


def test_long_request_leaves_room_for_short_ones(model: Any) -> None:
    most, engine, answers = run_mixed_load(model, 1.3, batch_invariant=True)
    assert most == 32
    assert engine.load.preemptions == 0
    assert engine.model.capacity <= 1.3 * TOKENS
    alone = LLM(model, "none", batch_invariant=True)
    for index in (0, 1):
        assert answers[index] == alone.generate([mixed_load()[index]], PARAMS)[0].token_ids


@needs_page_map
@pytest.mark.parametrize("batch_invariant", [True, False])
def test_mixed_load_writes_little_more_than_it_needs(model: Any, batch_invariant: bool) -> None:
    _, engine, _ = run_mixed_load(model, 20, batch_invariant=batch_invariant)
    needed = TOKENS * engine.model.position_bytes
    blocks = as_cached_lm(engine.model)._cache.blocks
    assert needed <= resident_bytes(blocks) <= 1.3 * needed


def test_slots_of_equal_length_need_more_memory(model: Any) -> None:
    most, _, _ = run_mixed_load(model, 1.3, batch_invariant=False)
    assert most < 8


@pytest.mark.parametrize("seed", range(4))
def test_content_survives_region_moves(seed: int) -> None:
    chance, cache, texts = np.random.default_rng(seed), RegionCache(2), dict[int, torch.Tensor]()
    for _ in range(120):
        action = chance.integers(5)
        if action == 0 or not texts:
            slot = cache.take()
            texts[slot] = torch.zeros(2, 0, 16)
            cache.lengthen(slot, int(chance.integers(1, 40)))
            continue
        slot = int(chance.choice(list(texts)))
        if action == 1:
            cache.give_back(slot)
            del texts[slot]
        elif action == 2 and len(texts) > 1:
            other = int(chance.choice([each for each in texts if each != slot]))
            cache.swap(slot, other, 0)
            texts[slot], texts[other] = texts[other], texts[slot]
        elif action == 3:
            cache.shorten(slot, texts[slot].shape[1])
        else:
            states = torch.randn(2, int(chance.integers(1, 60)), 16)
            for layer in range(2):
                cache.write(slot, layer, texts[slot].shape[1], states, -states)
            texts[slot] = torch.cat([texts[slot], states], dim=1)
        for each, text in texts.items():
            for keys, values in filter(None, cache.read(each, text.shape[1])):
                assert torch.equal(keys, text)
                assert torch.equal(values, -text)


def test_regions_do_not_overlap_and_pack() -> None:
    cache = RegionCache(1)
    slots = [cache.take() for _ in range(4)]
    for slot in slots:
        cache.write(slot, 0, 0, *torch.full((2, 1, 10, 16), float(slot)))
    capacity = cache.capacity
    for slot in slots[::2]:
        cache.shorten(slot, 1)
    cache.lengthen(slots[0], capacity - 21)  # fits only after the others have moved
    assert cache.capacity == capacity
    assert cache.regions.used <= capacity
    (pair,) = cache.read(slots[3], 10)
    assert pair is not None
    assert torch.equal(pair[0], torch.full((1, 10, 16), 3.0))


@pytest.mark.parametrize("spec", ["none", "lookahead"])
def test_answers_survive_region_moves(spec: str) -> None:
    model = make("llama", "sdpa")
    each = [prompt * (1 + 2 * number) for number, prompt in enumerate(prompts(4))]
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    alone = LLM(model, "none", batch_invariant=True)
    expected = [alone.generate([prompt], params)[0].token_ids for prompt in each]
    limit = 300 * alone.model.position_bytes / 2**30
    llm = LLM(model, spec, max_batch=4, cache_gib=limit, keep_prefixes=2, batch_invariant=True)
    for _ in range(2):
        assert [out.token_ids for out in llm.generate(each, params)] == expected
    assert llm.model.capacity <= 300


@pytest.mark.parametrize("lengths", [[30, 7, 18], [12, 12, 12]])
def test_padded_batches_gather_their_regions(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("llama", "sdpa")
    expected = run_steps(CachedLM(model, fixed_shapes=False), lengths)
    monkeypatch.setattr(cached_lm, "reads_regions", lambda *_: True)
    lm = CachedLM(model, fixed_shapes=False)
    assert lm.slots.has_regions
    torch.testing.assert_close(run_steps(lm, lengths), expected, atol=2e-5, rtol=1e-4)
