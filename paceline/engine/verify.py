"""The two laws that make every drafter lossless, as pure walks over a tree, and their application to a batch.

*Follow the sample* (guesses): at each node draw the target's own token; go to the child that carries it, else stop.
*Reject with probabilities* (Leviathan et al. 2023, Chen et al. 2023; several children: Miao et al. 2024): children in
order, each accepted with min(1, target/draft), else target <- normalise(max(target - draft, 0)).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListLike
from dataclasses import replace
from typing import Any

from torch import Tensor

from paceline.engine import sampling
from paceline.engine.drafter import Outcome, TopTokens
from paceline.engine.sequence import Sequence
from paceline.engine.tree import DraftTree, node_depths

Vector = Any  # anything with indexing, -, /, .sum() and .clip(0): a Tensor here, an array of fractions in the tests


def follow(tree: DraftTree, draw: Callable[[int], int], ended: Callable[[list[int]], object]) -> tuple[list[int], list[int]]:
    """Walk by the target's own tokens.

    Args:
        draw: the target's token after a node (-1 = root); asked once per emitted token, in order.
        ended: whether the sequence ends with the last of these tokens; asked for every token.
    Returns:
        accepted nodes, and the emitted tokens (one more than accepted, or as many where the sequence ended).
    """
    child = tree.edges()
    accepted: list[int] = []
    run: list[int] = []
    node: int | None = -1
    while node is not None:
        run.append(draw(node))
        node = child.get((node, run[-1]))
        if node is not None:
            accepted.append(node)
        if ended(run):
            break
    return accepted, run


def reject(
    tree: DraftTree,
    target: Callable[[int], Vector],
    coin: Callable[[int, Any], bool],
    draw: Callable[[int, Vector], int],
    ended: Callable[[list[int]], object],
) -> tuple[list[int], list[int]]:
    """Walk by accepting or rejecting the drafter's draws.

    Args:
        target: the target distribution [vocab] after a node (-1 = root).
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
        for child in children[node + 1]:
            token, drawn_from = tree.token_ids[child], None if tree.probs is None else tree.probs[child]
            chance = weights[token] if drawn_from is None else weights[token] / drawn_from[token]
            if coin(child, chance):
                node = child
                accepted.append(child)
                run.append(token)
                break
            weights = _without(weights, token) if drawn_from is None else _residual(weights, drawn_from)
        else:
            run.append(draw(len(run), weights))
            ended(run)
            return accepted, run
        if ended(run):
            return accepted, run


def _residual(target: Vector, draft: Vector) -> Vector:
    rest = (target - draft).clip(0)
    total = rest.sum()
    return rest / total if total > 0 else target  # target == draft: acceptance was certain but for rounding


def _without(target: Vector, token: int) -> Vector:
    rest = target + 0  # a copy
    rest[token] = 0
    total = rest.sum()
    return rest / total if total > 0 else target


def answers(
    seqs: ListLike[Sequence], trees: ListLike[DraftTree], logits: Tensor
) -> tuple[Tensor, list[list[int]], list[list[int]]]:
    """What the target says after the root and after every node: scores, the token it chooses, its most likely token.

    Args:
        logits: as in `verify`.
    Returns:
        scores [batch, 1 + width, vocab] of `target_scores`; twice batch lists of 1 + width tokens.
    """
    scores = sampling.target_scores(logits, seqs, trees)
    drawn = sampling.draw(scores, seqs, trees)
    greedy = all(seq.params.greedy for seq in seqs)
    return scores, drawn, drawn if greedy else scores.argmax(-1).tolist()


def verify(seqs: ListLike[Sequence], trees: ListLike[DraftTree], logits: Tensor) -> list[Outcome]:
    """Decide what is emitted for each sequence of a batch.

    Args:
        logits: [batch, 1 + width, vocab]: after the root, then after every node; rows beyond a tree are padding.
    """
    scores, drawn, argmax = answers(seqs, trees, logits)
    outcomes = []
    for row, (seq, tree) in enumerate(zip(seqs, trees, strict=True)):
        if tree.probs is None or seq.params.greedy:
            tokens = drawn[row]
            accepted, run = follow(tree, lambda node, tokens=tokens: tokens[node + 1], seq.end_reason)  # type: ignore[misc]
        else:
            accepted, run = _reject_row(seq, tree, scores[row])
        outcomes.append(Outcome(seq, tree, accepted, run, argmax[row][: 1 + len(tree)]))
    return outcomes


def with_top_tokens(outcomes: list[Outcome], logits: Tensor, count: int) -> list[Outcome]:
    """Add the target's `count` most likely tokens after the root and after every node to the outcomes of a step.

    Args:
        logits: as in `verify`, the rows in the order of `outcomes`.
    """
    if not outcomes:
        return outcomes
    best = logits.topk(min(count, logits.shape[-1]), dim=-1)
    probs = (best.values.float() - logits.float().logsumexp(-1, keepdim=True)).exp().cpu().numpy()
    token_ids = best.indices.cpu().numpy()
    return [
        replace(outcome, target_top=TopTokens(token_ids[row, : 1 + len(outcome.tree)], probs[row, : 1 + len(outcome.tree)]))
        for row, outcome in enumerate(outcomes)
    ]


def _reject_row(seq: Sequence, tree: DraftTree, scores: Tensor) -> tuple[list[int], list[int]]:
    probs = scores[: 1 + len(tree)].softmax(-1)
    seed, start = seq.params.seed, len(seq) - seq.prompt_length
    depths = node_depths(tree.parents)

    def coin(node: int, chance: Tensor) -> bool:
        # A position is decided in one step only, so its coins are fresh; siblings differ by their node.
        position = start + int(depths[node]) - 1
        return sampling.uniform(seed, position, sampling.ACCEPT, node) < float(chance)

    def draw(depth: int, weights: Tensor) -> int:
        return sampling.draw_one(weights, seed, start + depth, sampling.RESIDUAL)

    return reject(tree, lambda node: probs[node + 1], coin, draw, seq.end_reason)
