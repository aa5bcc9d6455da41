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
    weights: Vector = None

    def reaches(node: int) -> bool:
        nonlocal weights
        weights = target(node)
        return weights is not None

    def accepts(child: int) -> bool:
        nonlocal weights
        token = tree.token_ids[child]
        drawn_from = None if tree.probs is None else tree.probs[child]
        chance = weights[token] if drawn_from is None else weights[token] / drawn_from[token]
        if coin(child, chance):
            return True
        weights = _without(weights, token) if drawn_from is None else _residual(weights, drawn_from)
        return False

    return try_children(tree, reaches, accepts, lambda _, depth: draw(depth, weights), ended)


def try_children(
    tree: DraftTree,
    reaches: Callable[[int], bool],
    accepts: Callable[[int], bool],
    draw: Callable[[int, int], int],
    ended: Callable[[list[int]], object],
) -> tuple[list[int], list[int]]:
    """Walk the tree by testing the children of each node in order.

    Args:
        tree: Draft tree.
        reaches: Function that is called for each node of the walk (-1 = root), and returns False to
            end the walk before a token is emitted after it.
        accepts: Function that returns whether a child is accepted.
        draw: Function that returns the token after a node and its depth, if no child is accepted.
        ended: As in `follow`.
    Returns:
        Accepted nodes and emitted tokens, as in `follow`.
    """
    children = tree.children()
    accepted: list[int] = []
    run: list[int] = []
    node = -1
    while True:
        if not reaches(node):  # as in `follow`
            return accepted[:-1], run
        child = next(filter(accepts, children[node + 1]), None)
        if child is None:
            run.append(draw(node, len(run)))
            ended(run)
            return accepted, run
        accepted.append(child)
        run.append(tree.token_ids[child])
        node = child
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
