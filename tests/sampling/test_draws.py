"""Test random draws: their distribution, their independence, and extreme scores."""

from __future__ import annotations

import dataclasses
from collections import Counter

import torch
from torch import Tensor

from paceline import DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.sampling import sampler
from tests.support.shared import is_fair_sample

PROBS = torch.tensor([0.3, 0.0, 0.2, 0.15, 0.1, 0.1, 0.08, 0.04, 0.02, 0.01])
CHANCES = dict(enumerate(PROBS.tolist()))
DRAWS = 20_000


def draw_seeds(scores: Tensor, positions: int, stream: int = sampler.TARGET) -> list[list[int]]:
    """Draw the first `positions` tokens of `DRAWS` requests with seeds 0, 1, ..."""
    requests = [Request([1], SamplingParams(temperature=1.0, seed=seed)) for seed in range(DRAWS)]
    chain = DraftTree.chain([0] * (positions - 1))
    return sampler.draw(
        scores.expand(DRAWS, positions, len(scores)), requests, [chain] * DRAWS, stream
    ).tolist()


def test_draws_over_seeds_are_distributed_and_independent() -> None:
    tokens = draw_seeds(PROBS.log(), 3)
    pairs = {(one, other): CHANCES[one] * CHANCES[other] for one in CHANCES for other in CHANCES}
    for place in range(3):
        assert is_fair_sample(Counter(row[place] for row in tokens), CHANCES)
    assert is_fair_sample(Counter((row[0], row[1]) for row in tokens), pairs)
    assert is_fair_sample(Counter((row[0], row[2]) for row in tokens), pairs)


def test_draws_over_positions_are_distributed_correctly() -> None:
    """Check thousands of tokens of one request, whose neighbours are independent too."""
    request = Request([1], SamplingParams(temperature=1.0, seed=12345))
    size = 500  # a chain's mask is quadratic in its length
    chain = DraftTree.chain([0] * (size - 1))
    tokens: list[int] = []
    for _ in range(DRAWS // size):
        tokens += sampler.draw(PROBS.log().expand(1, size, len(PROBS)), [request], [chain])[
            0
        ].tolist()
        request.token_ids += [0] * size
    pairs = {(one, other): CHANCES[one] * CHANCES[other] for one in CHANCES for other in CHANCES}
    assert is_fair_sample(Counter(tokens), CHANCES)
    assert is_fair_sample(Counter(zip(tokens[::2], tokens[1::2], strict=True)), pairs)


def test_streams_and_single_draws_are_independent() -> None:
    """Check that drafts, acceptance and residual draws share no noise with the target."""
    target = [row[0] for row in draw_seeds(PROBS.log(), 1)]
    draft = [row[0] for row in draw_seeds(PROBS.log(), 1, sampler.DRAFT)]
    residual = [
        sampler.draw_one(PROBS * 7, seed, 0, sampler.RESIDUAL) for seed in range(DRAWS // 4)
    ]
    coins = [
        int(sampler.uniform(seed, 0, sampler.ACCEPT, node) * 4)
        for seed in range(DRAWS // 4)
        for node in range(4)
    ]
    pairs = {(one, other): CHANCES[one] * CHANCES[other] for one in CHANCES for other in CHANCES}
    quarters = {(coin, token): chance / 4 for coin in range(4) for token, chance in CHANCES.items()}
    assert is_fair_sample(Counter(residual), CHANCES)
    assert is_fair_sample(Counter(zip(target, draft, strict=True)), pairs)
    assert is_fair_sample(Counter(zip(target, residual, strict=False)), pairs)
    assert is_fair_sample(Counter(zip(coins[::4], target, strict=False)), quarters)
    assert is_fair_sample(Counter(zip(coins[::4], draft, strict=False)), quarters)
    assert is_fair_sample(
        Counter(zip(coins[::4], coins[1::4], strict=True)),
        {(a, b): 1 / 16 for a in range(4) for b in range(4)},
    )


def test_large_vocabulary_is_drawn_evenly() -> None:
    """Check equally likely tokens in 64 bins by the top and the bottom bits of their ids."""
    vocab = 8192
    requests = [Request([1], SamplingParams(temperature=1.0, seed=seed)) for seed in range(2000)]
    tokens = [
        row[0]
        for row in sampler.draw(
            torch.zeros(1, 1, vocab).expand(2000, 1, vocab), requests, [EMPTY_TREE] * 2000
        ).tolist()
    ]
    even = dict.fromkeys(range(64), 1 / 64)
    assert is_fair_sample(Counter(token % 64 for token in tokens), even)
    assert is_fair_sample(Counter(token // (vocab // 64) for token in tokens), even)
    assert len(set(tokens)) > 1700


def test_fits_has_power() -> None:
    """Check that `fits` refuses a slightly wrong distribution and impossible tokens."""
    off = PROBS + torch.tensor([0.02, 0, -0.02, 0, 0, 0, 0, 0, 0, 0])
    assert not is_fair_sample(Counter(row[0] for row in draw_seeds(off.log(), 1)), CHANCES)
    assert not is_fair_sample(Counter({0: 100, 1: 1}), CHANCES)


def test_noise_is_finite_and_exponential() -> None:
    keys = [
        sampler.noise_key(seed, position, 0)
        for seed in (-1, 0, 1, 2**63)
        for position in (0, 1, 10**6)
    ]
    noise = sampler.exponential_noise(keys, 50_000, torch.device("cpu"))
    assert bool(torch.isfinite(noise).all())
    assert bool((noise > 0).all())
    assert abs(float(noise.mean()) - 1) < 0.01
    assert abs(float(noise.var()) - 1) < 0.02
    assert len({tuple(row[:4].tolist()) for row in noise}) == len(keys)
    again = sampler.exponential_noise(keys[3:4], 50_000, torch.device("cpu"))
    assert torch.equal(again[0], noise[3])


def test_extreme_scores_give_a_token() -> None:
    """Check one certain token, and scores that overflow a softmax without its shift."""
    params = SamplingParams(temperature=0.01)
    for scores in (
        torch.full((9,), -torch.inf).index_fill(0, torch.tensor(4), 0.0),
        torch.tensor([0.0] * 4 + [1e4] + [-1e4] * 4),
    ):
        requests = [Request([1], dataclasses.replace(params, seed=seed)) for seed in range(50)]
        logits = scores.expand(50, 1, 9)
        tokens = sampler.draw(
            sampler.target_scores(logits, requests, [EMPTY_TREE] * 50), requests, [EMPTY_TREE] * 50
        ).tolist()
        assert tokens == [[4]] * 50
