"""Test that sampling on a device equals the CPU and rarely waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline import SamplingParams
from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.sampling import sampler
from paceline.sampling.logit_adjustments import adjust_scores
from paceline.sampling.settings import DEVICE_SORTED_TOKENS
from paceline.util.device_copies import fetch, finish, upload
from paceline.verification.batched_shares import prepare_shares
from paceline.verification.logprobs import score_outcomes
from paceline.verification.walks import walk_prepared, walk_sampled
from tests.support.simulated_cuda import CUDA, simulated_cuda
from tests.support.traffic import bytes_down, num_waits

TREES = [EMPTY_TREE, DraftTree([5, 6, 7, 6], [-1, -1, 0, 0]), DraftTree.chain([3, 3])]
NUMBERS = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    """Return random logits."""
    return 3 * torch.randn(shape, generator=NUMBERS)


def requests_of(params: Sequence[SamplingParams], vocab: int = 40) -> list[Request]:
    """Return a request with a different text for each of the parameters."""
    requests = []
    for seed, one in enumerate(params):
        request = Request([1, 2, 2, seed], dataclasses.replace(one, seed=seed), eos_token_ids=[9])
        request.append([7, seed % vocab, 7])
        requests.append(request)
    return requests


def test_arrays_take_one_copy_each_way() -> None:
    arrays: tuple[NDArray[Any], ...] = (
        np.arange(6).reshape(2, 3),
        np.array([1.5, -0.0], dtype=np.float32),
        np.array([True, False, True]),
        np.empty((0, 2), dtype=np.float32),
        np.array([-1], dtype=np.int32),
    )
    with simulated_cuda() as traffic:
        tensors = upload(CUDA, *arrays, [4, 5])
        assert [event.waits for event in traffic.take()] == [False]
        found = fetch(*tensors)
        assert [event.waits for event in traffic.take()] == [True]
    for array, copied in zip((*arrays, np.array([4, 5])), found, strict=True):
        assert copied.dtype == array.dtype
        assert np.array_equal(copied, array)
        assert copied.shape == array.shape


PARAMS = [
    SamplingParams(20, 0.7, repetition_penalty=1.3, bad_words=((4,), (7, 6))),
    SamplingParams(20, 0.0, frequency_penalty=0.4, logit_bias={3: 2.0, 8: -1.0}),
    SamplingParams(20, 1.2, 8, 0.9, min_tokens=6, presence_penalty=-0.5),
    SamplingParams(20, 1e-5, min_p=0.1),
    SamplingParams(20, 1.0),
    SamplingParams(20, 0.0),
]


def test_scores_and_draws_equal_the_cpu() -> None:
    logits, trees = numbers(len(PARAMS), 5, 40), TREES * 2
    on_cpu = sampler.draw_tokens(logits, requests_of(PARAMS), trees)
    with simulated_cuda() as traffic:
        requests = requests_of(PARAMS)
        on_device_copy = sampler.draw_tokens(logits.to(CUDA), requests, trees)
        scores = on_device_copy.scores.cpu()
        assert num_waits(traffic.events) == 3  # the logits, the tokens, the scores
    for row, tree in enumerate(trees):
        own = slice(1 + len(tree))
        assert torch.equal(scores[row, own], on_cpu.scores[row, own])
        assert on_device_copy.tokens[row][own] == on_cpu.tokens[row][own]


def test_counts_follow_a_shortened_text() -> None:
    """Check a request whose draft tokens were rejected, as in the draft model's copy."""
    params = SamplingParams(20, frequency_penalty=0.5, repetition_penalty=1.5)
    logits = numbers(2, 1, 40)
    with simulated_cuda():
        on_device_copy = logits.to(CUDA)
        kept = requests_of([params] * 2)
        for answer in ([7], [7, 3, 3], [7, 5], [], [7, 3, 4]):
            kept[0].token_ids[kept[0].prompt_length :] = answer
            fresh = requests_of([params] * 2)
            fresh[0].token_ids[fresh[0].prompt_length :] = answer
            for order in ([0, 1], [1, 0], [0]):
                found, expected = (
                    adjust_scores(
                        on_device_copy[: len(order)],
                        [each[i] for i in order],
                        [EMPTY_TREE] * len(order),
                    ).cpu()
                    for each in (kept, fresh)
                )
                assert torch.equal(found, expected)


@pytest.mark.parametrize("spread", [0.01, 8.0])
def test_large_nucleus_is_drawn_from_all_tokens(spread: float) -> None:
    vocab = 4 * DEVICE_SORTED_TOKENS
    logits = spread * torch.randn(2, 1, vocab, generator=torch.Generator().manual_seed(1))
    params, trees = [SamplingParams(20, 1.0, top_p=0.99)] * 2, [EMPTY_TREE] * 2
    on_cpu = sampler.draw_tokens(logits, requests_of(params), trees)
    with simulated_cuda() as traffic:
        on_device_copy = logits.to(CUDA)
        traffic.take()
        drawn = sampler.draw_tokens(on_device_copy, requests_of(params), trees)
        assert num_waits(traffic.take()) == (2 if spread < 1 else 1)
        torch.testing.assert_close(drawn.scores.cpu(), on_cpu.scores)
    assert drawn.tokens == on_cpu.tokens


def sampled_tree(probs: Tensor, guess: bool, leaf_first: bool) -> DraftTree:
    """Return a tree with two children of the root and one child of the first."""
    first = probs[0]
    second = first.index_fill(0, torch.tensor([3]), 0.0)
    dists = [first, None if guess else second / second.sum(), probs[1]]
    return DraftTree([3, 5, 2], [-1, -1, 0], dists, leaf_first=leaf_first)


@pytest.mark.parametrize("guess", [True, False])
@pytest.mark.parametrize("leaf_first", [True, False])
def test_prepared_shares_equal_the_walk(guess: bool, leaf_first: bool) -> None:
    """Check all outcomes: each child, neither, and a child of the first."""
    vocab, paths = 12, set()
    for seed in range(60):
        scores = numbers(1, 4, vocab)
        scores[0, 0, 5] += 3  # so that the second child is accepted often enough
        tree = sampled_tree(numbers(2, vocab).softmax(-1), guess, leaf_first)
        (request,) = requests_of([SamplingParams(20, 1.0, seed=seed)])
        request.params = dataclasses.replace(request.params, seed=seed)
        argmax = [0] * 4
        expected = walk_sampled(
            request, tree, scores[0].softmax(-1).__getitem__, argmax, torch.float32
        )
        with simulated_cuda() as traffic:
            assert tree.probs is not None
            on_device_copy = dataclasses.replace(
                tree, probs=[None if dist is None else dist.to(CUDA) for dist in tree.probs]
            )
            on_device = scores.to(CUDA)
            traffic.take()
            (shares,) = finish([prepare_shares(on_device, [request], [on_device_copy], [0])])
            assert num_waits(traffic.take()) == 1
        assert walk_prepared(request, tree, shares[0], argmax, torch.float32) == expected
        paths.add(tuple(expected[0]))
    assert paths == {(), (0,), (1,), (0, 2)}


def test_log_probabilities_of_a_batch_take_one_copy() -> None:
    counts = [2, None, 0, 5]
    requests = requests_of([SamplingParams(20, logprobs=count) for count in counts])
    flat = numbers(16, 40)
    logits = NodeLogits.from_rows(flat, [4] * 4)
    outcomes = [
        Outcome(request, DraftTree.chain([1, 2, 3]), [0, 1], [1, 2, 8], [0] * 4)
        for request in requests
    ]
    with simulated_cuda() as traffic:
        on_device_copy = NodeLogits.from_rows(flat.to(CUDA), [4] * 4)
        traffic.take()
        (found,) = finish([score_outcomes(outcomes, on_device_copy)])
        events = traffic.take()
    assert num_waits(events) == 1
    assert bytes_down(events) == 9 * (5 + 5 + 1) * 4
    assert found == finish([score_outcomes(outcomes, logits)])[0]
    for row, (count, scored) in enumerate(zip(counts, found, strict=True)):
        if count is None:
            assert scored is None
            continue
        for position, (token, one) in enumerate(zip([1, 2, 8], scored, strict=True)):
            exact = flat[4 * row + position].log_softmax(-1)
            assert {*exact.topk(count).indices.tolist(), token} == {*one}
            assert one[token] == pytest.approx(float(exact[token]))
