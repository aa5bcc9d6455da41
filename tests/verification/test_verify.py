"""Test by exact enumeration that verification keeps the target's distribution.

Output must equal it as fractions, whatever the tree. Then every rule that the proof needs is
broken once, and the distribution must differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from paceline import DraftTree
from paceline.verification.rules import follow, reject, traverse
from tests.support.enumeration import (
    EOS,
    LENGTH,
    PLAIN,
    VOCAB,
    GrowingTree,
    Oracle,
    Walk,
    complete,
    dist,
    draft,
    emitted,
    ended,
    followed,
    path_to,
    target,
)


def chain(oracle: Oracle) -> DraftTree:
    tree = GrowingTree(oracle)
    node = -1
    for _ in range(2):
        node = tree.draw(node)
    return tree.build()


def one_draw(oracle: Oracle) -> DraftTree:
    tree = GrowingTree(oracle)
    tree.draw(-1)
    return tree.build()


def siblings(oracle: Oracle) -> DraftTree:
    tree = GrowingTree(oracle)
    tree.draw_two(-1)
    return tree.build()


def siblings_twice(oracle: Oracle) -> DraftTree:
    tree = GrowingTree(oracle)
    first, second = tree.draw_two(-1)
    tree.draw(first)
    tree.draw_two(second)
    return tree.build()


def draws_then_guesses(oracle: Oracle) -> DraftTree:
    tree = GrowingTree(oracle)
    first, _ = tree.draw_two(-1)
    for node in tree.guess(-1, 0, 2):
        tree.guess(node, 1, 3)
    tree.draw(first)
    tree.guess(first, 2, 1)
    return tree.build()


def guesses(oracle: Oracle) -> DraftTree:
    return DraftTree([2, 0, 3, 1, 2, 3], [-1, -1, 0, 0, 1, 3])


def no_drafts(oracle: Oracle) -> DraftTree:
    return DraftTree([], [])


def draws_past_the_end(oracle: Oracle) -> DraftTree:
    """Draft past the end of the sequence and its limit, where nothing may be emitted."""
    tree = GrowingTree(oracle)
    node = -1
    for _ in range(LENGTH + 1):
        node = tree.draw(node)
    return tree.build()


def stops_after_unlikely(oracle: Oracle) -> DraftTree:
    """Stop drafting after an unlikely token, but propose that token."""
    tree = GrowingTree(oracle)
    node = tree.draw(-1)
    if draft(())[tree.tokens[node]] > Fraction(1, 4):
        tree.draw(node)
    return tree.build()


TREES = [
    chain,
    one_draw,
    siblings,
    siblings_twice,
    draws_then_guesses,
    guesses,
    no_drafts,
    draws_past_the_end,
    stops_after_unlikely,
]


@pytest.mark.parametrize("walk", [reject, traverse])
@pytest.mark.parametrize("propose", TREES)
def test_sampled_drafts_keep_the_distribution(
    propose: Callable[[Oracle], DraftTree], walk: Walk
) -> None:
    assert emitted(propose, walk) == PLAIN


@pytest.mark.parametrize("propose", TREES)
def test_following_keeps_the_distribution(propose: Callable[[Oracle], DraftTree]) -> None:
    """Check all trees, because `follow` does not depend on where they come from."""
    assert followed(propose) == PLAIN


def test_exact_distribution_of_the_target() -> None:
    assert sum(PLAIN.values()) == 1
    assert any(len(run) < LENGTH for run in PLAIN)
    assert all(EOS not in run[:-1] for run in PLAIN)
    for first, second in itertools.product(VOCAB, VOCAB):
        if first != EOS:
            chance = sum(chance for run, chance in PLAIN.items() if run[:2] == (first, second))
            assert chance == target(())[first] * target((first,))[second]


# Broken rules, which must change the distribution.


def not_renormalised(oracle: Oracle) -> DraftTree:
    tree = GrowingTree(oracle)
    tree.draw_two(-1, renormalise=False)
    return tree.build()


def drops_unlikely_draw(oracle: Oracle) -> DraftTree:
    """Drop an unlikely draw, so that proposing it depends on the draw."""
    tree = GrowingTree(oracle)
    node = tree.draw(-1)
    return tree.build() if draft(())[tree.tokens[node]] > Fraction(1, 4) else no_drafts(oracle)


def guess_before_draw(oracle: Oracle) -> DraftTree:
    """Put a guess before the draw it depends on, because it is tried only if they differ."""
    tree = GrowingTree(oracle)
    probs = draft(())
    token = oracle.draw(probs)
    if token != 1:
        tree.add(1, -1)
    tree.add(token, -1, probs)
    return tree.build()


def argmax_with_softmax_probs(oracle: Oracle) -> DraftTree:
    """Draft the arg-max, but report the softmax."""
    tree = GrowingTree(oracle)
    probs = draft(())
    tree.add(int(probs.argmax()), -1, probs)
    return tree.build()


@pytest.mark.parametrize(
    "propose", [not_renormalised, drops_unlikely_draw, guess_before_draw, argmax_with_softmax_probs]
)
def test_broken_drafters_change_the_distribution(propose: Callable[[Oracle], DraftTree]) -> None:
    assert emitted(propose) != PLAIN


def unclipped_residual(weights: Any, probs: Any) -> Any:
    rest = abs(weights - probs)
    return rest / rest.sum()


def no_residual(weights: Any, probs: Any) -> Any:
    return weights


def walk_with(residual: Callable[[Any, Any], Any]) -> Walk:
    """Return a plain implementation of rejection with the given residual."""

    def walk(
        tree: DraftTree, target: Any, coin: Any, draw: Any, ended: Any
    ) -> tuple[list[int], list[int]]:
        accepted: list[int] = []
        run: list[int] = []
        tables: list[Any] = list(tree.probs or [])
        node = -1
        while not ended(run):
            weights = target(node)
            for child in tree.children()[node + 1]:
                token, probs = tree.token_ids[child], tables[child]
                if coin(child, weights[token] / probs[token]):
                    accepted.append(child)
                    run.append(token)
                    node = child
                    break
                weights = residual(weights, probs)
            else:
                return accepted, [*run, draw(len(run), weights)]
        return accepted, run

    return walk


def right_residual(weights: Any, probs: Any) -> Any:
    rest = (weights - probs).clip(0)
    return rest / rest.sum()


@pytest.mark.parametrize("propose", [chain, siblings])
def test_broken_residuals_change_the_distribution(propose: Callable[[Oracle], DraftTree]) -> None:
    """Check an unclipped and a missing residual; the correct one passes."""
    assert emitted(propose, walk_with(right_residual)) == PLAIN
    assert emitted(propose, walk_with(unclipped_residual)) != PLAIN
    assert emitted(propose, walk_with(no_residual)) != PLAIN


def num_accepted(propose: Callable[[Oracle], DraftTree], walk: Walk = traverse) -> Fraction:
    """Return the expected number of accepted tokens in one step."""

    def experiment(oracle: Oracle) -> tuple[int, ...]:
        tree = propose(oracle)
        accepted, _ = walk(
            tree,
            lambda node: target(path_to(tree, node)),
            lambda node, chance: oracle.coin(chance),
            lambda depth, weights: oracle.draw(weights),
            ended,
        )
        return (len(accepted),)

    return sum(
        (count * chance for (count,), chance in Oracle().enumerate(experiment).items()), Fraction(0)
    )


def test_traversal_accepts_more_than_rejection() -> None:
    """Check that both accept equally many where no child has children."""
    for propose in (one_draw, siblings):
        assert num_accepted(propose) == num_accepted(propose, reject)
    assert num_accepted(draws_past_the_end) > num_accepted(draws_past_the_end, reject)


def leaf_first(split: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Walk:
    """Return a plain implementation of traversal of a chain with the given split."""

    def walk(
        tree: DraftTree, target: Any, coin: Any, draw: Any, ended: Any
    ) -> tuple[list[int], list[int]]:
        shares: list[Any] = [(Fraction(1), target(-1))]
        tables: list[Any] = list(tree.probs or [])
        for node, token in enumerate(tree.token_ids):
            share, weights = shares[node]
            reach = min(1, share * weights[token] / tables[node][token])
            shares[node] = split(share, weights, tables[node])
            shares.append((reach, target(node)))
        last = len(tree)
        while last and not coin(last - 1, shares[last][0]):
            last -= 1
        weights = shares[last][1]
        for length in range(1, last + 1):
            if ended(tree.token_ids[:length]):
                return list(range(length)), tree.token_ids[:length]
        return list(range(last)), [*tree.token_ids[:last], draw(last, weights)]

    return walk


def right_split(share: Any, weights: Any, probs: Any) -> tuple[Any, Any]:
    rest = (share * weights - probs).clip(0)
    total = rest.sum()
    return total / (1 - share + total), rest / total if total else weights


@pytest.mark.parametrize(
    "split",
    [
        lambda share, weights, probs: (share, right_split(share, weights, probs)[1]),
        lambda share, weights, probs: (
            right_split(share, weights, probs)[0],
            right_split(Fraction(1), weights, probs)[1],
        ),
    ],
    ids=["share kept", "rest of the whole target"],
)
def test_broken_splits_change_the_distribution(
    split: Callable[[Any, Any, Any], tuple[Any, Any]],
) -> None:
    """Check wrong splits; the same walk passes with the correct split."""
    assert emitted(draws_past_the_end, leaf_first(right_split)) == PLAIN
    assert emitted(draws_past_the_end, leaf_first(split)) != PLAIN


def test_unnormalised_residual_breaks_the_second_sibling() -> None:
    """Check one child, where the draw itself renormalises, and two, where it does not."""

    def unnormalised(weights: Any, probs: Any) -> Any:
        return (weights - probs).clip(0)

    def walk(*args: Any) -> tuple[list[int], list[int]]:
        tree, target, coin, draw, ended = args
        return walk_with(unnormalised)(
            tree, target, coin, lambda depth, weights: draw(depth, weights / weights.sum()), ended
        )

    assert emitted(one_draw, walk) == PLAIN
    assert emitted(siblings, walk) != PLAIN


def test_longest_match_of_several_samples_is_biased() -> None:
    """Check sampling along every branch and keeping the longest match, as typical in REST."""

    def experiment(oracle: Oracle) -> tuple[int, ...]:
        best: list[int] = []
        for first in (0, 2):  # two guessed branches, each checked with its own draws
            token = oracle.draw(target(()))
            run = (
                [token, oracle.draw(target((token,)))]
                if token == first and token != EOS
                else [token]
            )
            best = run if len(run) > len(best) else best
        return complete(oracle, best)

    assert Oracle().enumerate(experiment) != PLAIN


def test_greedy_by_softmax_ratio_is_not_greedy() -> None:
    """Check draft (0.50, 0.30, 0.20) and target (0.45, 0.55, 0).

    The ratio accepts the draft token with probability 0.90, which greedy decoding never does.
    """
    draft_probs, target_probs = dist(50, 30, 20, 0), dist(45, 55, 0, 0)
    tree = DraftTree([0], [-1], [draft_probs])

    def experiment(oracle: Oracle) -> tuple[int, ...]:
        _, run = traverse(
            tree,
            lambda node: target_probs,
            lambda node, chance: oracle.coin(chance),
            lambda depth, weights: int(weights.argmax()),
            lambda run: True,
        )
        return (run[0],)

    assert Oracle().enumerate(experiment) == {(0,): Fraction(9, 10), (1,): Fraction(1, 10)}
    _, greedy = follow(tree, lambda node: int(target_probs.argmax()), lambda run: False)
    assert greedy == [1]


def test_certain_and_impossible_drafts() -> None:
    """Check drafts that are always, never and sometimes accepted."""
    sure, other = dist(0, 1, 0, 0), dist(1, 0, 0, 0)
    half = dist(1, 1, 0, 0)

    def accepted(target_probs: Any, draft_probs: Any) -> dict[tuple[int, ...], Fraction]:
        tree = DraftTree.chain([1, 1], [draft_probs, draft_probs])

        def experiment(oracle: Oracle) -> tuple[int, ...]:
            nodes, run = traverse(
                tree,
                lambda node: target_probs,
                lambda node, chance: oracle.coin(chance),
                lambda depth, weights: oracle.draw(weights),
                lambda run: False,
            )
            assert len(run) == len(nodes) + 1
            return (len(nodes),)

        return Oracle().enumerate(experiment)

    assert accepted(sure, sure) == {(2,): Fraction(1)}
    assert accepted(other, sure) == {(0,): Fraction(1)}
    assert accepted(half, sure) == {
        (0,): Fraction(1, 2),
        (1,): Fraction(1, 4),
        (2,): Fraction(1, 4),
    }
