"""Compare forward passes in fixed shapes with forward passes in exact shapes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.kv_cache.settings import MAX_SLOTS
from paceline.model.cached_lm import CachedLM
from paceline.model.fixed_shapes import padded_bucket, runner
from paceline.model.fixed_shapes.masks import MaskBuilder
from paceline.model.fixed_shapes.settings import COLUMNS
from paceline.sampling.top_tokens import find_top_tokens, top_tokens_at
from tests.support import models
from tests.support.attention import random_parents
from tests.support.shared import Pair
from tests.support.triton import patch_interpreter

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton and TRITON_INTERPRET=1"
)


def run_steps(lm: CachedLM, lengths: Sequence[int], steps: int = 3, max_nodes: int = 12) -> Any:
    """Return the logits of some steps with random trees, and the engine's requests.

    The logits follow each pending token and each node. Models with the same vocabulary get the
    same trees.
    """
    chance = np.random.default_rng(5)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in chance.integers(1, lm.vocab_size, count)]

    requests = [Request(tokens(length), SamplingParams()) for length in lengths]
    for request in requests:
        lm.open(request)
        lm.feed([request])
        request.token_ids += tokens(1)
    logits = []
    for step in range(steps):
        sizes = chance.integers(0, max_nodes + 1, len(requests))
        trees = [DraftTree(tokens(size), random_parents(chance, size)) for size in sizes]
        nodes = lm.forward_nodes(requests, trees)
        logits += [nodes[row] for row in range(len(requests))]
        accepted = [tree.path(len(tree) - 1) for tree in trees]
        lm.commit(accepted)
        for request, tree, path in zip(requests, trees, accepted, strict=True):
            request.token_ids += [tree.token_ids[node] for node in path] + tokens(1 + step)
        if step == 1:
            lm.close(requests.pop(0))
    return torch.cat(logits)


@pytest.mark.parametrize("name", [name for name, kind in models.CASES if kind == "sdpa"])
def test_logits_equal_those_of_exact_shapes(name: str) -> None:
    model = models.make(name, "sdpa")
    own, fixed = (CachedLM(model, fixed_shapes=setting) for setting in (False, True))
    lengths = [30, 7, 18]
    expected, result = run_steps(own, lengths), run_steps(fixed, lengths)
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=1e-4)


def test_mask_without_the_tree_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(MaskBuilder):
        def masks(self, inputs: Any, reaches: Any) -> Any:
            block = torch.ones_like(inputs.block).tril()
            return super().masks(inputs._replace(block=block), reaches)

    model = models.make("llama", "sdpa")
    expected = run_steps(CachedLM(model, fixed_shapes=False), [30, 7, 18])
    monkeypatch.setattr(padded_bucket, "MaskBuilder", Blind)
    result = run_steps(CachedLM(model, fixed_shapes=True), [30, 7, 18])
    assert (result - expected).abs().max() > 1e-2


def test_states_equal_those_of_exact_shapes() -> None:
    model = models.make("llama", "sdpa")
    states = []
    for setting in (False, True):
        lm = CachedLM(model, fixed_shapes=setting)
        requests = [Request(list(range(1, length)), SamplingParams()) for length in (9, 20)]
        for request in requests:
            lm.open(request)
            lm.feed([request])
            request.token_ids += [3, 4, 5]
        trees = [DraftTree([7, 8], [-1, -1]), DraftTree([9], [-1])]
        logits = lm.forward_with_states(requests, trees, layers=(1,), pending=True)
        assert logits.states is not None
        assert logits.pending is not None
        states.append(torch.cat([logits.states, *logits.pending]))
    torch.testing.assert_close(states[1], states[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("num_top", [1, 5])
def test_most_likely_tokens_equal_those_of_the_logits(num_top: int) -> None:
    lm = CachedLM(models.make("llama", "sdpa"), fixed_shapes=True)
    requests = [Request(list(range(1, length)), SamplingParams()) for length in (9, 20)]
    for request in requests:
        lm.open(request)
        lm.feed([request])
        request.token_ids += [3, 4, 5]
    trees = [DraftTree([7, 8], [-1, -1]), DraftTree([9], [-1])]
    logits = lm.forward_nodes(requests, trees, num_top=num_top)
    assert logits.top is not None
    expected = find_top_tokens(replace(logits, top=None), num_top).top
    assert expected is not None
    assert torch.equal(logits.top.columns, expected.columns)
    assert torch.equal(logits.top.probs, expected.probs)
    chosen = top_tokens_at(logits, [[2], [0, 1]], num_top)
    rows = [2, logits.starts[1], logits.starts[1] + 1]
    assert torch.equal(chosen.columns, expected.columns[rows])
    assert find_top_tokens(logits, num_top) is logits
    assert lm.forward_nodes(requests, trees).top is None


@pytest.mark.parametrize("moves", [False, True])
def test_few_shapes_serve_many_steps(moves: bool) -> None:
    lm = CachedLM(models.make("llama", "sdpa"), fixed_shapes=True)
    lm.reserve(4, 256)
    run_steps(lm, [30, 7, 18], steps=2)
    fixed = lm._runner.fixed_shapes
    assert fixed is not None
    assert {key.columns for key in fixed._buckets} <= set(COLUMNS)
    assert {key.positions for key in fixed._buckets} == {256}
    before = list(fixed._buckets.values())
    lm.reserve(MAX_SLOTS + 1 if moves else 4, 512)  # the stores move beyond the maximum only
    run_steps(lm, [5], steps=1, max_nodes=0)
    after = list(fixed._buckets.values())
    assert (
        not any(bucket in after for bucket in before) if moves else after[: len(before)] == before
    )
    assert {key.positions for key in fixed._buckets} == {256}


@pytest.mark.parametrize("drafter", ["none", "lookahead", "auto"])
def test_answers_equal_generate(pair: Pair, drafter: str) -> None:
    params = SamplingParams(max_new_tokens=len(pair.answers[0]), ignore_eos=True)
    llm = LLM(pair.target, drafter, max_batch=3, batch_invariant=False, fixed_shapes=True)
    answers = llm.generate(pair.prompts, params)
    assert [answer.token_ids for answer in answers] == pair.answers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_forward_pass_compiles_without_graph_breaks(name: str) -> None:
    lm = CachedLM(models.make(name, "sdpa"), fixed_shapes=True)
    request = Request(list(range(1, 20)), SamplingParams())
    lm.open(request)
    lm.feed([request])
    request.token_ids.append(5)
    expected = lm.forward_nodes([request], [DraftTree([4, 5, 6], [-1, -1, 0])]).flat
    assert lm._runner.fixed_shapes is not None
    (bucket,) = [
        bucket for key, bucket in lm._runner.fixed_shapes._buckets.items() if key.columns == 8
    ]
    with torch.inference_mode():
        compiled: Any = torch.compile(bucket._forward, fullgraph=True, backend="eager")
        logits = compiled().logits[:, :4].flatten(0, 1)
    torch.testing.assert_close(logits, expected)


@interpreted
@pytest.mark.parametrize("by_position", [False, True])
def test_kernels_compute_the_same_logits(
    by_position: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.attention import registered, triton_kernel

    patch_interpreter(monkeypatch, in_order=False)
    monkeypatch.setattr(registered, "_attention_of", lambda _: triton_kernel.attention_by_position)
    model = models.make("llama", "sdpa")
    expected = run_steps(CachedLM(model, fixed_shapes=False), [30, 7], 2, 5)
    for module in (runner, padded_bucket):
        monkeypatch.setattr(module, "takes_trees", lambda device: True)
    lm = CachedLM(model, batch_invariant=by_position, fixed_shapes=True)
    result = run_steps(lm, [30, 7], 2, 5)
    assert lm._runner.fixed_shapes is not None
    assert lm._runner.fixed_shapes.num_graphs
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=1e-4)
