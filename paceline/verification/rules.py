"""Define the verification rules that make every drafter lossless.

Sample matching (for deterministic drafts) starts at the root. At each node, it samples the target's
next token and continues at the child that has this token. It stops if there is no such child.

Traversal verification (for sampled drafts) follows Weng et al. 2025 (arXiv 2505.12398). It tests
the nodes from the leaves to the root, and the first accepted node ends the path. Every node has a
share: the probability that the path ends at this node or at one of its descendants. The share is
min(1, parent's share * target probability / draft probability). If the node and its descendants are
rejected, the target distribution after the parent changes. The new probability of every token is
max(parent's share * target probability - draft probability, 0), normalised.

For a chain, traversal verification is the same as block verification (Sun et al. 2024, arXiv
2403.10444). For a tree of depth 1, it is the same as rejection sampling.

Rejection sampling (Leviathan et al. 2023, Chen et al. 2023; Miao et al. 2024 for several children)
tests the children of each accepted node in order. It accepts fewer tokens than traversal
verification, but needs the target's distributions only along the accepted path. Requests with
logits processors always use rejection sampling for sampled drafts: a processor may keep state, so
it runs only along the accepted path.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from paceline.core.not_numbers import NO_TOKEN
from paceline.core.tree import DraftTree

# Any type with indexing, -, /, .sum() and .clip(0): a Tensor, or an array of `Fraction` in tests.
Vector = Any


def follow(
    tree: DraftTree, draw: Callable[[int], int], ended: Callable[[list[int]], object]
) -> tuple[list[int], list[int]]:
    """Apply sample matching: walk the tree along the target's own tokens.

    Args:
        tree: Draft tree.
        draw: Function that returns the target's token after a node (-1 is the root), or NO_TOKEN to
            end the walk. `follow` calls it once per emitted token, in order.
        ended: Function that receives the tokens emitted so far, and returns whether the last one
            ends the request. `follow` calls it after every token.
    Returns:
        Accepted nodes and emitted tokens. The number of tokens is one more than the number of
        nodes, or the same if an accepted node ended the request. Both lists are empty if there is
        no token after the root.
    """
    accepted: list[int] = []
    run: list[int] = []
    node: int | None = -1
    while node is not None:
        token = draw(node)
        if token == NO_TOKEN:  # this node's cached keys and values are not finite, so drop it
            return accepted[:-1], run
        run.append(token)
        node = tree.child(node, token)
        if node is not None:
            accepted.append(node)
        if ended(run):
            break
    return accepted, run


def follow_chosen(
    tree: DraftTree, tokens: Sequence[int], ending: Container[int], max_tokens: int
) -> tuple[list[int], list[int]]:
    """Walk the tree along the target's own tokens, which are all known in advance.

    The result is the same as that of `follow`, which calls two functions for each token. This
    function calls none, and is therefore faster.

    Args:
        tree: Draft tree.
        tokens: The target's token after the root, then after each node. NO_TOKEN is not allowed.
        ending: Tokens that end the request.
        max_tokens: Maximum number of emitted tokens; at least 1.
    Returns:
        Accepted nodes and emitted tokens.
    """
    token_ids, parents, num_candidates = tree.token_ids, tree.parents, tree.num_candidates
    accepted: list[int] = []
    run: list[int] = []
    node = -1
    try:
        while True:
            token = tokens[node + 1]
            run.append(token)
            child = token_ids.index(token, node + 1, num_candidates)  # children follow parents
            while parents[child] != node:
                child = token_ids.index(token, child + 1, num_candidates)
            accepted.append(child)
            if token in ending or len(run) >= max_tokens:
                return accepted, run
            node = child
    except ValueError:  # no child has the token
        return accepted, run


def traverse(
    tree: DraftTree,
    target: Callable[[int], Vector | None],
    coin: Callable[[int, Any], bool],
    draw: Callable[[int, Vector], int],
    ended: Callable[[list[int]], object],
) -> tuple[list[int], list[int]]:
    """Apply traversal verification: walk the tree from the leaves to the root.

    Args:
        tree: Draft tree.
        target: Function that returns the target distribution [vocab] after a node (-1 is the root).
            None means that no token may follow the node; `traverse` then ignores the node's
            descendants.
        coin: Function that decides at random whether to accept a node, given the acceptance
            probability.
        draw: Function that draws the token after the accepted path, given the token's depth and
            weights [vocab] that sum to 1. `traverse` calls it at most once.
        ended: Function that receives the tokens emitted so far, and returns whether the last one
            ends the request.
    Returns:
        Accepted nodes and emitted tokens.
    """
    shares: dict[int, tuple[Any, Vector]] = {-1: (1, target(-1))}
    for node, parent in enumerate(tree.parents[: tree.num_candidates]):
        share, weights = shares.get(parent, (0, None))
        if weights is not None:
            reach, shares[parent] = _split(share, weights, tree, node)
            shares[node] = reach, target(node)
    last = next(
        node
        for node in leaves_first(tree)
        if node < 0 or (node in shares and coin(node, shares[node][0]))
    )
    weights = shares[last][1]
    return emit(tree, last, None if weights is None else lambda at: draw(at, weights), ended)


def reject(
    tree: DraftTree,
    target: Callable[[int], Vector | None],
    coin: Callable[[int, Any], bool],
    draw: Callable[[int, Vector], int],
    ended: Callable[[list[int]], object],
) -> tuple[list[int], list[int]]:
    """Apply rejection sampling: walk the tree from the root towards a leaf.

    Args:
        tree: Draft tree.
        target: Function that returns the target distribution [vocab] after a node (-1 is the root).
            None means that no token may follow the node. `reject` calls it only for the root and
            accepted nodes, in order.
        coin: Function that decides at random whether to accept a node, given the acceptance
            probability.
        draw: Function that draws a token, given the token's depth and weights [vocab] that sum to
            1.
        ended: Function that receives the tokens emitted so far, and returns whether the last one
            ends the request.
    Returns:
        Accepted nodes and emitted tokens.
    """
    children = tree.children()
    accepted: list[int] = []
    run: list[int] = []
    node: int | None = -1
    while node is not None:
        weights = target(node)
        if weights is None:  # as in `follow`
            return accepted[:-1], run
        siblings, node = children[node + 1], None
        for child in siblings:
            reach, (_, left) = _split(1, weights, tree, child)
            if coin(child, reach):
                node = child
                break
            weights = left
        if node is not None:
            accepted.append(node)
        run.append(draw(len(run), weights) if node is None else tree.token_ids[node])
        if ended(run):
            break
    return accepted, run


def leaves_first(tree: DraftTree) -> Iterator[int]:
    """Yield every node after all its descendants; the root (-1) comes last."""
    children = tree.children()
    stack = [(-1, False)]
    while stack:
        node, is_tested = stack.pop()
        if is_tested:
            yield node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children[node + 1]))


def emit(
    tree: DraftTree,
    last: int,
    draw: Callable[[int], int] | None,
    ended: Callable[[list[int]], object],
) -> tuple[list[int], list[int]]:
    """Return the nodes of an accepted path, and the tokens that the request emits.

    Args:
        tree: Draft tree.
        last: Last accepted node; -1 if no node is accepted.
        draw: Function that returns the token after the path, given the token's depth; None if no
            token may follow.
        ended: Function that receives the tokens emitted so far, and returns whether the last one
            ends the request.
    """
    accepted: list[int] = []
    run: list[int] = []
    for node in tree.path(last):
        accepted.append(node)
        run.append(tree.token_ids[node])
        if ended(run):
            return accepted, run
    if draw is None:  # as in `follow`
        return accepted[:-1], run
    run.append(draw(len(run)))
    ended(run)
    return accepted, run


def _split(
    share: Any, weights: Vector, tree: DraftTree, node: int
) -> tuple[Any, tuple[Any, Vector]]:
    """Return a node's share, and what remains for its parent after a rejection.

    A share is the probability that the path ends at a node or at one of its descendants. Weights
    are the target distribution after the parent. If the node is rejected, the returned share and
    weights replace those of the parent.

    Args:
        share: Current share of the parent.
        weights: Current weights, [vocab]. Rejections of earlier children have already changed them.
        tree: Draft tree.
        node: Node to test.
    Returns:
        The node's share, and the pair of the parent's new share and weights.
    """
    token, joint = tree.token_ids[node], share * weights
    drawn_from = None if tree.probs is None else tree.probs[node]
    if drawn_from is None:
        reach, rest = joint[token], joint + 0  # copy
        rest[token] = 0
    else:
        reach, rest = joint[token] / drawn_from[token], (joint - drawn_from).clip(0)
    total = rest.sum()
    divisor = 1 - share + total
    # If nothing remains, only rounding or NaN draft probabilities cause a rejection.
    left = total / divisor if divisor > 0 else share, rest / total if total > 0 else weights
    return 1 if reach > 1 else reach, left
