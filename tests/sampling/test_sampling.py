"""Test the scores of the target against transformers, and which draws a step makes."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline import DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, tree_shape
from paceline.sampling import sampler
from paceline.verification import verify
from tests.support.shared import COUNT, Pair

PARENTS = [-1, 0, -1, 2, 2]
SAMPLED = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_k=7),
    SamplingParams(temperature=0.9, top_p=0.7),
    SamplingParams(temperature=1.1, min_p=0.2),
    SamplingParams(temperature=1.0, repetition_penalty=1.5),
    SamplingParams(temperature=0.8, repetition_penalty=0.7, top_k=9, top_p=0.85, min_p=0.05),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_p=0.01),
    SamplingParams(temperature=1.0, top_k=10_000),
    SamplingParams(temperature=1.0, top_k=200, top_p=0.999),
    SamplingParams(temperature=1.0, min_p=1.0),
]
GREEDY = [SamplingParams(), SamplingParams(repetition_penalty=1.3, top_k=2, top_p=0.5)]


def processors(params: SamplingParams) -> Any:
    """Return what `model.generate` applies for these parameters, in its order."""
    chosen: list[Any] = []
    if params.repetition_penalty != 1.0:
        chosen.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if not params.greedy:
        chosen.append(TemperatureLogitsWarper(float(params.temperature)))
        if params.top_k:
            chosen.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1.0:
            chosen.append(TopPLogitsWarper(params.top_p))
        if params.min_p > 0.0:
            chosen.append(MinPLogitsWarper(params.min_p))
    return LogitsProcessorList(chosen)


def expected(logits: Tensor, request: Request, tree: DraftTree) -> Tensor:
    """Apply the processors to every node's own prefix, one after the other."""
    process = processors(request.params)
    rows = []
    for node in range(-1, len(tree)):
        ancestors = (
            tree_shape(tuple(tree.parents))[1][node].nonzero()[0].tolist() if node >= 0 else []
        )
        prefix = torch.tensor([request.token_ids + [tree.token_ids[i] for i in ancestors]])
        rows.append(process(prefix, logits[node + 1][None].clone())[0])
    return torch.stack(rows)


def batch(
    params: list[SamplingParams], vocab: int, spread: float
) -> tuple[Tensor, list[Request], list[DraftTree]]:
    """Return random logits, requests and trees; every third tree is empty."""
    rng = random.Random(vocab)
    requests = [
        Request([rng.randrange(vocab) for _ in range(rng.randrange(1, 9))], one) for one in params
    ]
    trees = [
        DraftTree([rng.randrange(vocab) for _ in PARENTS], PARENTS) if row % 3 else EMPTY_TREE
        for row in range(len(params))
    ]
    logits = (
        torch.randn(
            len(params), 1 + len(PARENTS), vocab, generator=torch.Generator().manual_seed(vocab)
        )
        * spread
    )
    return logits, requests, trees


@pytest.mark.parametrize(
    ("vocab", "spread"), [(11, 2.0), (120, 3.0), (600, 0.3), (600, 4.0), (5000, 0.1)]
)
@pytest.mark.parametrize(
    "params", [SAMPLED, SAMPLED + GREEDY, GREEDY], ids=["sampled", "mixed", "greedy"]
)
def test_scores_equal_the_processors_of_transformers(
    params: list[SamplingParams], vocab: int, spread: float
) -> None:
    """Check flat and peaked distributions and large nuclei, with different params per row."""
    logits, requests, trees = batch(params, vocab, spread)
    scores = sampler.target_scores(logits.clone(), requests, trees)
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        torch.testing.assert_close(
            scores[row, : 1 + len(tree)], expected(logits[row], request, tree), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("params", SAMPLED)
def test_row_alone_equals_the_row_in_a_batch(params: SamplingParams) -> None:
    mixed = [*SAMPLED, params, *GREEDY]
    logits, requests, trees = batch(mixed, 300, 1.0)
    scores = sampler.target_scores(logits.clone(), requests, trees)
    row = len(SAMPLED)
    alone = sampler.target_scores(
        logits[row : row + 1].clone(), requests[row : row + 1], trees[row : row + 1]
    )
    torch.testing.assert_close(scores[row], alone[0], rtol=1e-5, atol=1e-6)


def test_low_precision_logits_are_widened() -> None:
    logits, requests, trees = batch(SAMPLED, 50, 2.0)
    assert sampler.target_scores(logits.bfloat16(), requests, trees).dtype == torch.float32


def test_top_k_of_one_is_greedy() -> None:
    params = [SamplingParams(temperature=2.0, top_k=1, seed=seed) for seed in range(40)]
    logits, requests, trees = batch(params, 70, 1.0)
    tokens = sampler.draw(sampler.target_scores(logits, requests, trees), requests, trees).tolist()
    for row, tree in enumerate(trees):
        assert tokens[row][: 1 + len(tree)] == logits[row, : 1 + len(tree)].argmax(-1).tolist()


@pytest.mark.parametrize(("vocab", "spread"), [(120, 3.0), (5000, 1.0)])
def test_lazy_draws_equal_the_batch(vocab: int, spread: float) -> None:
    params = [
        dataclasses.replace(one, seed=seed)
        for seed in range(8)
        for one in SAMPLED
        if not one.adjusts
    ]
    logits, requests, trees = batch(params, vocab, spread)
    together = sampler.draw(
        sampler.target_scores(logits.clone(), requests, trees), requests, trees
    ).tolist()
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        draws = sampler.LazyDraws(logits[row], request, tree)
        assert [draws[place] for place in range(1 + len(tree))] == together[row][: 1 + len(tree)]


def test_draws_depend_on_seed_and_position_only() -> None:
    """Check other batches, tree shapes and indices of a node within the tree."""
    vocab, row = 200, torch.randn(200, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=1.0, seed=77)
    other = SamplingParams(temperature=1.0, seed=78)
    prompt = [5, 6, 7]

    def draws(answer: int, tree: DraftTree, neighbours: int = 0) -> list[int]:
        """Draw for a request with `answer` output tokens; all nodes have equal scores."""
        requests = [Request(prompt, other) for _ in range(neighbours)] + [Request(prompt, params)]
        requests[-1].token_ids += [1] * answer
        trees = [EMPTY_TREE] * neighbours + [tree]
        scores = row.expand(len(requests), 1 + len(tree), vocab)
        return sampler.draw(scores, requests, trees)[-1].tolist()

    plain = [draws(position, EMPTY_TREE)[0] for position in range(4)]
    assert len(set(plain)) > 1
    assert draws(0, DraftTree.chain([1, 2, 3])) == plain
    assert draws(0, DraftTree([1, 2, 3, 4], [-1, -1, 0, 2]), neighbours=3) == [
        plain[0],
        plain[1],
        plain[1],
        plain[2],
        plain[3],
    ]
    assert draws(2, DraftTree.chain([1]), neighbours=1) == plain[2:]
    assert draws(0, EMPTY_TREE) == [plain[0]]


@pytest.mark.parametrize(
    "speculations", [("none", "sssd"), ("none", "sssd", None)], ids=["sampled", "with greedy"]
)
def test_only_emitted_tokens_are_drawn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, speculations: tuple[str | None, ...]
) -> None:
    """Check batches in which the request without speculation is greedy."""
    params = [
        SamplingParams(COUNT, temperature=0.8 if one else 0.0, seed=5, speculation=one or "sssd")
        for one in speculations
    ]
    prompts = [pair.prompts[0]] * len(params)
    together = [answer.token_ids for answer in pair.engine().generate(prompts, params)]
    drawn: list[int] = []
    monkeypatch.setattr(verify, "MIN_LAZY_VOCABULARY", 1)
    monkeypatch.setattr(sampler, "draw", lambda *_: pytest.fail("all of them are drawn"))
    one = sampler.draw_one

    def count_draws(weights: Tensor, seed: int, position: int, stream: int) -> int:
        drawn.append(position)
        return one(weights, seed, position, stream)

    monkeypatch.setattr(sampler, "draw_one", count_draws)
    lazy = [answer.token_ids for answer in pair.engine().generate(prompts, params)]
    assert lazy == together
    assert lazy[0] == lazy[1]
    assert len(drawn) == len(lazy[0]) + len(lazy[1])
