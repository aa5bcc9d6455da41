"""Define the two verification rules that make every drafter lossless.

Sample matching (for deterministic drafts) samples the target's own token at each node. It continues
at the child with that token, or stops if there is none.

Rejection sampling (for sampled drafts) follows Leviathan et al. 2023 and Chen et al. 2023; for
several children, it follows Miao et al. 2024. It tests the children in order and accepts each with
probability min(1, target/draft). After a rejection, target = normalise(max(target - draft, 0)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.core.not_numbers import NO_TOKEN
from paceline.core.tree import DraftTree

# Any type with indexing, -, /, .sum() and .clip(0): a Tensor, or an array of fractions in tests.
Vector = Any


def follow(
    tree: DraftTree, draw: Callable[[int], int], ended: Callable[[list[int]], object]
) -> tuple[list[int], list[int]]:
    """Walk the tree along the target's own tokens (sample matching).

    Args:
        tree: Draft tree.
        draw: Function that returns the target's token after a node (-1 = root). It is called once
            per emitted token, in order. NO_TOKEN ends the walk.
        ended: Function that returns whether the request ends with the last of the given tokens. It
            is called for every token.
    Returns:
        Accepted nodes and emitted tokens. There is one more token than nodes, or the same number if
        the request ended. Both are empty if there is no token after the root.
    """
    child = tree.edges()
    accepted: list[int] = []
    run: list[int] = []
    node: int | None = -1
    while node is not None:
        token = draw(node)
        if token == NO_TOKEN:  # the cached keys and values of this node are not finite either
            return accepted[:-1], run
        run.append(token)
        node = child.get((node, run[-1]))
        if node is not None:
            accepted.append(node)
        if ended(run):
            break
    return accepted, run


def reject(
    tree: DraftTree,
    target: Callable[[int], Vector | None],
    coin: Callable[[int, Any], bool],
    draw: Callable[[int, Vector], int],
    ended: Callable[[list[int]], object],
) -> tuple[list[int], list[int]]:
    """Walk the tree by accepting or rejecting sampled tokens (rejection sampling).

    Args:
        tree: Draft tree.
        target: Function that returns the target distribution [vocab] after a node (-1 = root); None
            ends the walk.
        coin: Function that returns whether to accept a node, given the acceptance probability.
        draw: Function that returns a token for a depth and weights [vocab] that sum to 1. It is
            called if no child is left.
        ended: As in `follow`.
    Returns:
        Accepted nodes and emitted tokens, as in `follow`.
    """
    children = tree.children()
    accepted: list[int] = []
    run: list[int] = []
    node = -1
    while True:
        weights = target(node)
        if weights is None:  # as in `follow`
            return accepted[:-1], run
        for child in children[node + 1]:
            token, drawn_from = (
                tree.token_ids[child],
                None if tree.probs is None else tree.probs[child],
            )
            chance = weights[token] if drawn_from is None else weights[token] / drawn_from[token]
            if coin(child, chance):
                node = child
                accepted.append(child)
                run.append(token)
                break
            weights = (
                _without(weights, token) if drawn_from is None else _residual(weights, drawn_from)
            )
        else:
            run.append(draw(len(run), weights))
            ended(run)
            return accepted, run
        if ended(run):
            return accepted, run


def _residual(target: Vector, draft: Vector) -> Vector:
    rest = (target - draft).clip(0)
    total = rest.sum()
    # If target == draft, only rounding prevents acceptance.
    return rest / total if total > 0 else target


def _without(target: Vector, token: int) -> Vector:
    rest = target + 0  # copy
    rest[token] = 0
    total = rest.sum()
    return rest / total if total > 0 else target
