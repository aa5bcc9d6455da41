"""Test draft lengths that maximise tokens per second for measured step costs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from paceline.core.tree import DraftTree
from paceline.draft_budget.acceptance_calibration import new_calibration, path_probabilities
from paceline.draft_budget.step_costs import StepCosts, flatten_chains, optimal_lengths


def chains(*confidence: list[float]) -> list[DraftTree]:
    return [DraftTree.chain([5] * len(one), confidence=one) for one in confidence]


def lengths(costs: StepCosts, *confidence: list[float]) -> list[int]:
    flat = flatten_chains(chains(*confidence))
    chances = path_probabilities(new_calibration(), flat)
    return optimal_lengths(chances, flat.starts, costs.seconds(len(confidence), len(chances)))


def costs_after(plain: float, each: float, sequences: int, noise: float = 0.0) -> StepCosts:
    """Return costs learnt from steps of `plain` seconds and `each` per draft token."""
    costs, rng = StepCosts(), random.Random(0)
    for step in range(100):
        drafted = step % 9
        costs.note(sequences, drafted, (plain + each * drafted) * (1 + rng.uniform(-noise, noise)))
    return costs


def test_path_probabilities_are_products() -> None:
    flat = flatten_chains(chains([0.5, 0.5, 0.9], [], [0.25]))
    assert path_probabilities(new_calibration(), flat) == pytest.approx([0.5, 0.25, 0.225, 0.25])
    assert flat.starts.tolist() == [0, 3, 3, 4]


def test_invalid_confidences_are_clipped() -> None:
    flat = flatten_chains(
        [DraftTree.chain([1, 2, 3], confidence=[float("nan"), 7.0, -3.0]), DraftTree.chain([4])]
    )
    assert ((flat.confidence >= 0) & (flat.confidence <= 1)).all()


def test_lengths_are_optimal() -> None:
    """Compare with every possible choice of lengths."""
    rng = random.Random(1)
    for _ in range(50):
        confidence = [[rng.random() for _ in range(rng.randrange(4))] for _ in range(3)]
        flat = flatten_chains(chains(*confidence))
        chances = path_probabilities(new_calibration(), flat)
        seconds = np.cumsum([1.0, *(rng.uniform(0.05, 0.6) for _ in chances)])
        seconds = np.maximum.accumulate(seconds)
        found = optimal_lengths(chances, flat.starts, seconds)

        def rate(choice: tuple[int, ...], flat=flat, chances=chances, seconds=seconds) -> float:  # type: ignore[no-untyped-def]
            gain = sum(
                chances[flat.starts[i] : flat.starts[i] + size].sum()
                for i, size in enumerate(choice)
            )
            return float((3 + gain) / seconds[sum(choice)])

        best = max(
            rate(choice)
            for choice in itertools.product(*(range(len(one) + 1) for one in confidence))
        )
        assert rate(tuple(found)) == pytest.approx(best)


def test_learnt_costs_decide_the_length() -> None:
    likely = [0.9] * 8
    assert lengths(StepCosts(), likely) == [8], "drafts are tried before anything is known"
    assert lengths(costs_after(1.0, 0.001, 1), likely) == [8]
    assert lengths(costs_after(1.0, 1.0, 1), likely) == [0], (
        "a token that costs a step is never worth it"
    )
    some = lengths(costs_after(1.0, 0.3, 1, noise=0.1), likely)[0]
    assert 1 <= some < 8


def test_full_batch_drafts_less() -> None:
    """Check steps bound by arithmetic, where rows are free only in small batches."""
    costs = StepCosts()
    for step in range(200):
        sequences, drafted = (1, step % 9) if step % 2 else (16, 4 * (step % 9))
        costs.note(sequences, drafted, max(8.0, sequences + drafted))
    likely = [0.7] * 6
    alone, together = lengths(costs, likely)[0], max(lengths(costs, *[likely] * 16))
    assert alone > together


def test_tokens_of_slower_requests_are_worth_more() -> None:
    """Check token values: the last request to finish determines the batch's end."""
    costs = costs_after(1.0, 0.1, 4)
    assert costs.token_values([7]) == pytest.approx([1.0])
    assert costs.token_values([5, 5, 5, 5]) == pytest.approx([1.0] * 4)
    worth = costs.token_values([0, 3, 9, 40])
    assert worth.sum() == pytest.approx(4)
    assert sorted(worth, reverse=True) == worth.tolist()
    assert worth[0] > 1.5
    assert worth[3] == pytest.approx(0.4, rel=0.05)  # a row of 0.1, where a token takes 0.25
    dear = costs_after(1.0, 0.5, 4).token_values([0, 3, 9, 40])
    assert dear == pytest.approx([1.0] * 4)  # a step takes only its rows


def test_confident_chains_are_drafted_first() -> None:
    found = lengths(costs_after(1.0, 0.07, 4), [0.95] * 8, [0.1] * 8, [0.5] * 8, [])
    assert found[0] > found[2] > found[1] == 0
    assert found[3] == 0


def test_outlier_steps_are_ignored() -> None:
    costs = costs_after(1.0, 0.01, 1)
    before = costs.seconds(1, 8)
    for _ in range(10):
        costs.note(1, 8, 100.0)
    assert costs.seconds(1, 8) == pytest.approx(before, rel=0.2)
