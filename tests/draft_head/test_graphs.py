"""Test that a draft head predicts the same trees as a CUDA graph, on a simulated device."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paceline.core.tree import DraftTree
from paceline.cuda import graphs as cuda_graphs
from paceline.draft_head.fitting import fitted_weights
from paceline.draft_head.guessing import DraftHead
from paceline.draft_head.weights import Weights
from paceline.model.cached_lm import CachedLM
from paceline.util.device_copies import finish, upload
from tests.support.shared import Pair
from tests.support.simulated_cuda import CUDA, moved, simulated_cuda

LEVELS = 4


@pytest.fixture(scope="module")
def weights(pair: Pair) -> Weights:
    """Return a draft head's weights for the target, with several levels."""
    found = fitted_weights(CachedLM(pair.target))
    assert found is not None
    return replace(found, levels=LEVELS)


def inputs_of(head: DraftHead, count: int, seed: int) -> tuple[Tensor, list[int]]:
    """Return states [count, hidden] and the tokens after them."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(count, len(head._outer) or head._first.shape[0], generator=generator)
    return states, torch.randint(0, 256, (count,), generator=generator).tolist()


def assert_same(found: list[DraftTree], expected: list[DraftTree]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.parents == other.parents
        assert one.confidence == pytest.approx(other.confidence, abs=1e-5)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_trees_equal_those_of_the_cpu(pair: Pair, weights: Weights, count: int) -> None:
    """Check the first call, the capture and later calls, with other inputs each."""
    on_cpu = DraftHead(CachedLM(pair.target), weights)
    cases = [inputs_of(on_cpu, count, seed) for seed in range(4)]
    expected = [on_cpu.predict(*case, LEVELS) for case in cases]
    with simulated_cuda():
        head = DraftHead(CachedLM(moved(copy.deepcopy(pair.target))), weights)
        for (states, token_ids), trees in zip(cases, expected, strict=True):
            assert_same(head.predict(states.to(CUDA), token_ids, LEVELS), trees)


def test_two_predictions_of_a_step_are_kept_apart(pair: Pair, weights: Weights) -> None:
    on_cpu = DraftHead(CachedLM(pair.target), weights)
    cases = [inputs_of(on_cpu, 2, seed) for seed in range(4)]
    expected = [on_cpu.predict(*case, LEVELS) for case in cases]
    with simulated_cuda(), torch.inference_mode():
        head = DraftHead(CachedLM(moved(copy.deepcopy(pair.target))), weights)
        pending = [
            head._predict(states.to(CUDA), upload(CUDA, token_ids)[0], LEVELS)
            for states, token_ids in cases
        ]
        for found, trees in zip(finish(pending), expected, strict=True):
            assert_same(found, trees)


def test_moved_weights_are_captured_again(pair: Pair, weights: Weights) -> None:
    with simulated_cuda():
        model = CachedLM(moved(copy.deepcopy(pair.target)))
        head = DraftHead(model, weights)
        states, token_ids = inputs_of(head, 1, 0)
        for _ in range(3):
            head.predict(states.to(CUDA), token_ids, LEVELS)
        graphs = head._graphs
        assert graphs is not None
        before = list(graphs._trees.values())
        head.predict(states.to(CUDA), token_ids, LEVELS)
        assert list(graphs._trees.values()) == before
        graphs._addresses[0] += 8
        head.predict(states.to(CUDA), token_ids, LEVELS)
        assert list(graphs._trees.values()) != before


def test_failed_capture_warns_once(
    pair: Pair, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu = DraftHead(CachedLM(pair.target), weights)
    states, token_ids = inputs_of(on_cpu, 2, 0)
    expected = on_cpu.predict(states, token_ids, LEVELS)

    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nat line 1")

    with simulated_cuda():
        head = DraftHead(CachedLM(moved(copy.deepcopy(pair.target))), weights)
        monkeypatch.setattr(cuda_graphs.GraphPool, "capture", refuse)
        assert_same(head.predict(states.to(CUDA), token_ids, LEVELS), expected)
        with pytest.warns(UserWarning, match=r"captured as a CUDA graph \(operation not permitted"):
            assert_same(head.predict(states.to(CUDA), token_ids, LEVELS), expected)
        assert_same(head.predict(states.to(CUDA), token_ids, LEVELS), expected)
