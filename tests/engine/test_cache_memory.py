"""Test the KV cache's memory: growing copies nothing, and unwritten positions take no memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.request import Request
from paceline.errors import CapacityError
from paceline.kv_cache import cache_memory, memory
from paceline.kv_cache.blocks import CacheSize
from paceline.kv_cache.region_cache import RegionCache
from paceline.kv_cache.settings import POOL_GROWTH
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.cached_lm import CachedLM
from paceline.model.transformers_target import as_cached_lm
from tests.engine.test_kv_cache_manager import prompts
from tests.support.models import make
from tests.support.resident import needs_page_map, resident_bytes
from tests.support.simulated_cuda import moved, simulated_cuda

LENGTHS = (20, 60, 200)
PARAMS = SamplingParams(max_new_tokens=100, ignore_eos=True)
DIM = 1024  # a position of a store takes one page


@pytest.fixture
def strict_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system count all memory that is allocated."""
    monkeypatch.setattr(memory, "has_lazy_memory", lambda: False)


def cache_of(llm: LLM) -> SlotCache:
    return as_cached_lm(llm.model)._cache


def addresses(cache: SlotCache) -> list[int]:
    return [store.data_ptr() for layer in cache.layers for store in (layer.keys, layer.values)]


def run_growing_requests(llm: LLM) -> Iterator[tuple[int, list[int]]]:
    """Run requests of increasing length; yield the capacity and the addresses of all stores."""
    for length in LENGTHS:
        handles = llm._engine.submit(
            [Request(prompt, PARAMS) for prompt in prompts(length // 20, length)]
        )
        while not all(handle.done for handle in handles):
            llm._engine.step()
            yield len(llm.model.slots) * llm.model.capacity, addresses(cache_of(llm))


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_growing_copies_nothing(batch_invariant: bool) -> None:
    llm = LLM(make("llama", "sdpa"), "none", batch_invariant=batch_invariant)
    capacities, places = zip(*run_growing_requests(llm), strict=True)
    assert capacities[-1] > 4 * capacities[0]
    assert all(each == places[0] for each in places)


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_cache_is_copied_where_all_memory_counts(
    batch_invariant: bool, strict_memory: None
) -> None:
    llm = LLM(make("llama", "sdpa"), "none", batch_invariant=batch_invariant)
    capacities, places = zip(*run_growing_requests(llm), strict=True)
    assert capacities[-1] > 4 * capacities[0]
    assert len({tuple(each) for each in places}) > 2
    assert cache_of(llm).allocated.positions == llm.model.capacity


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_answers_are_the_same_where_all_memory_counts(
    batch_invariant: bool, request: pytest.FixtureRequest
) -> None:
    def answers() -> list[list[int]]:
        llm = LLM(make("llama", "sdpa"), "lookahead", batch_invariant=batch_invariant)
        each = [prompt * (1 + 2 * number) for number, prompt in enumerate(prompts(4))]
        return [out.token_ids for out in llm.generate(each, PARAMS)]

    expected = answers()
    request.getfixturevalue("strict_memory")
    assert answers() == expected


def test_draft_models_grow_without_copies() -> None:
    lm = CachedLM(make("llama", "sdpa"))
    request = Request([3], PARAMS)
    lm.open(request)
    places = []
    for _ in range(6):
        request.token_ids += list(range(2, 52))
        lm.feed([request])
        places.append(addresses(lm._cache))
    assert lm.capacity >= 300
    assert all(each == places[0] for each in places)


def test_device_memory_is_allocated_once() -> None:
    with simulated_cuda():
        model: Any = moved(copy.deepcopy(make("llama", "sdpa")))
        llm = LLM(model, "none", max_batch=12, max_length=500, cache_gib=1, batch_invariant=False)
        assert cache_of(llm).allocated.slots == 12
        assert 500 < cache_of(llm).allocated.positions < llm.model.context_length + 600
        stores = [layer.keys for layer in cache_of(llm).layers]
        capacities, _ = zip(*run_growing_requests(llm), strict=True)
        assert capacities[-1] > 4 * capacities[0]
        moved_to = [layer.keys for layer in cache_of(llm).layers]
        assert all(own is other for own, other in zip(stores, moved_to, strict=True))


def test_limit_below_the_maximum_lets_equal_slots_grow() -> None:
    with simulated_cuda():
        model: Any = moved(copy.deepcopy(make("llama", "sdpa")))
        limit = 1000 * LLM(model, "none", max_batch=1).model.position_bytes / 2**30
        llm = LLM(model, "none", max_batch=12, cache_gib=limit, batch_invariant=False)
        for _ in run_growing_requests(llm):
            slots, positions = cache_of(llm).allocated
            assert slots * positions == len(llm.model.slots) * llm.model.capacity <= 1000


def test_cache_beyond_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cache_memory.CacheMemory, "preallocate", fail)
    with pytest.raises(CapacityError, match="Lower cache_gib, max_batch or max_length"):
        LLM(make("llama", "sdpa"), "none")


@pytest.mark.parametrize("seed", range(3))
def test_pool_stays_near_its_peak_use(seed: int) -> None:
    chance, cache, peak = np.random.default_rng(seed), RegionCache(1), 0
    open_slots: list[int] = []
    for _ in range(2000):
        if len(open_slots) == 32 or (open_slots and chance.random() < 0.4):
            cache.give_back(open_slots.pop(int(chance.integers(len(open_slots)))))
            continue
        open_slots.append(cache.take())
        cache.lengthen(open_slots[-1], int(chance.choice([8000, 500], p=[0.03, 0.97])))
        slot = int(chance.choice(open_slots))
        cache.lengthen(slot, int(cache.regions.sizes[slot]) + 64)
        peak = max(peak, cache.regions.used)
        assert cache.regions.end <= cache.capacity <= POOL_GROWTH * peak
    cache.lengthen(open_slots[0], 1)


def filled(cache: SlotCache, slots: int, length: int) -> SlotCache:
    """Write the first positions of some new slots."""
    cache.reserve(slots, length)
    for _ in range(slots):
        cache.write(cache.take(), 0, 0, *torch.ones(2, 1, length, DIM))
    return cache


@needs_page_map
def test_only_written_positions_take_memory() -> None:
    cache = filled(SlotCache(1), 4, 10)
    stores = list(cache.blocks)
    written = 2 * 4 * 10 * DIM * 4
    assert written <= resident_bytes(stores) < 1.2 * written
    cache.reserve(30, 5000)
    assert resident_bytes(stores) < 1.2 * written


@needs_page_map
def test_smaller_cache_returns_memory() -> None:
    cache = filled(SlotCache(1), 4, 10)
    for slot in (0, 2):
        cache.give_back(slot)
    stores = list(cache.blocks)
    assert cache.resize(2, 8) == {1: 0, 3: 1}
    assert resident_bytes(stores) < 1.2 * 2 * 2 * 8 * DIM * 4
    assert all(bool((pair[0] == 1).all()) for pair in filter(None, cache.read(1, 8)))
    pool = filled(RegionCache(1), 2, 10)
    pool.give_back(0)
    pool.resize(2, 10)
    assert resident_bytes(pool.blocks) < 1.2 * 2 * 10 * DIM * 4
    assert all(bool((pair[0] == 1).all()) for pair in filter(None, pool.read(1, 10)))


def test_size_beyond_the_reservation_is_copied() -> None:
    cache = filled(SlotCache(1, maximum=CacheSize(2, 10)), 2, 10)
    cache.reserve(3, 10)
    assert cache.allocated == (6, 10)
    cache.reserve(3, 11)
    assert cache.allocated.fits(CacheSize(6, 22))
    assert all(bool((pair[0] == 1).all()) for pair in filter(None, cache.read(1, 10)))


def test_spare_positions_stay_within_the_reservation() -> None:
    cache = filled(RegionCache(1, maximum=CacheSize(2, 100)), 1, 100)
    generation, slot = cache.generation, cache.take()
    for length in range(1, 100):
        cache.lengthen(slot, length)
    assert cache.capacity == 200
    assert cache.generation == generation
    cache.lengthen(slot, 101)
    assert cache.generation > generation


def test_limited_address_space_is_not_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not memory.can_reserve(1 << 60)
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 34, 1 << 34))
    assert not memory.has_lazy_memory.__wrapped__()
