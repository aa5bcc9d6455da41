"""Define the two verification rules that make every drafter lossless, as walks over a tree.

*Sample matching* (guesses): at each node draw the target's own token; go to the child that carries
it, else stop. *Rejection sampling* (Leviathan et al. 2023, Chen et al. 2023; several children: Miao
et al. 2024): children in order, each accepted with min(1, target/draft), else target <-
normalise(max(target - draft, 0)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.core.not_numbers import NO_TOKEN
from paceline.core.tree import DraftTree

# Anything with indexing, -, /, .sum() and .clip(0): a Tensor, or an array of fractions in tests.
Vector = Any


def follow(
    tree: DraftTree, draw: Callable[[int], int], ended: Callable[[list[int]], object]
) -> tuple[list[int], list[int]]:
    """Walk by the target's own tokens.

    Args:
        draw: the target's token after a node (-1 = root); asked once per emitted token, in order.
            NO_TOKEN ends the walk.
        ended: whether the sequence ends with the last of these tokens; asked for every token.
    Returns:
        accepted nodes, and the emitted tokens: one more than accepted, or as many where the
        sequence ended. None at all where there is no token after the root.
    """
    child = tree.edges()
    accepted: list[int] = []
    run: list[int] = []
    node: int | None = -1
    while node is not None:
        token = draw(node)
        if token == NO_TOKEN:  # what the cache has of this node is not numbers either
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
    """Walk by accepting or rejecting the drafter's draws.

    Args:
        target: the target distribution [vocab] after a node (-1 = root); None ends the walk.
        coin: (node, chance) -> whether that node is accepted.
        draw: (depth, weights [vocab]) -> the token drawn where no child is left; weights sum to 1.
        ended: as in `follow`.
    Returns:
        accepted nodes and emitted tokens, as `follow`.
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
    # target == draft: acceptance was certain but for rounding
    return rest / total if total > 0 else target


def _without(target: Vector, token: int) -> Vector:
    rest = target + 0  # a copy
    rest[token] = 0
    total = rest.sum()
    return rest / total if total > 0 else target
