"""Adjust logits for biases, penalties, bad words and minimum length.

The order is vLLM's, and transformers' for the options that it has: logit_bias, repetition penalty,
frequency and presence penalty, bad_words, min_tokens. The prefix of a node is the request's text
and the path to the node, so drafts change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.tree import DraftTree, tree_shape
from paceline.sampling.settings import MAX_DIVISOR, MIN_DIVISOR


def clamp_divisor(value: float) -> float:
    """Return `value` within bounds that float32 logits can be divided by."""
    return min(max(value, MIN_DIVISOR), MAX_DIVISOR)


def adjust_scores(
    scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree]
) -> Tensor:
    """Return the scores with the adjustments of every request.

    Args:
        scores: Logits, float32 [batch, 1 + width, vocab]. Row 0 follows the root, row 1 + i follows
            node i.
        requests: Requests of the batch.
        trees: Draft trees that were verified with them.
    Returns:
        Adjusted scores with forbidden tokens at -inf; the same tensor if no request adjusts scores.
    """
    rows = [row for row, request in enumerate(requests) if request.params.adjusts]
    if not rows:
        return scores
    scores = scores.clone()
    for row in rows:
        _adjust(scores[row, : 1 + len(trees[row])], requests[row], trees[row])
    return scores


def _adjust(scores: Tensor, request: Request, tree: DraftTree) -> None:
    """Change the scores [1 + nodes, vocab] of one request in place."""
    params = request.params
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias), device=scores.device)
        scores[:, tokens] += torch.tensor(list(params.logit_bias.values()), device=scores.device)
    if params.repetition_penalty != 1.0:
        seen = _counts(scores, request.token_ids, tree) > 0
        penalty = clamp_divisor(params.repetition_penalty)
        scores.copy_(
            torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
        )
    if params.frequency_penalty or params.presence_penalty:
        counts = _counts(scores, request.output_ids, tree)
        scores -= params.frequency_penalty * counts
        scores -= params.presence_penalty * (counts > 0)
    missing = params.min_tokens - len(request.output_ids)
    has_tokens = (
        (scores > -torch.inf).any(-1, keepdim=True) if params.bad_words or missing > 0 else None
    )
    if params.bad_words:
        for nodes, token in _completed(request, tree):
            scores[nodes, token] = -torch.inf
    if missing > 0 and request.eos_token_ids:
        early = torch.tensor(
            [depth < missing for depth in (0, *tree_shape(tuple(tree.parents))[0].tolist())]
        )
        ends = torch.tensor(sorted(request.eos_token_ids), device=scores.device)
        scores[early.nonzero().to(scores.device), ends] = -torch.inf
    # If all tokens are forbidden, keep a distribution; `contains_forbidden_token` reports it.
    if has_tokens is not None:
        scores.masked_fill_(has_tokens & ~(scores > -torch.inf).any(-1, keepdim=True), 0.0)


def contains_forbidden_token(request: Request, run: list[int]) -> bool:
    """Return whether new tokens include a forbidden one, as all tokens were forbidden.

    Args:
        request: Request that emits the tokens.
        run: New tokens, not yet appended.
    """
    start = len(request) - request.prompt_length
    if not request.eos_token_ids.isdisjoint(run[: max(0, request.params.min_tokens - start)]):
        return True
    output = request.output_ids + run if request.params.bad_words else []
    ends = range(start + 1, len(output) + 1)
    return any(
        tuple(output[max(0, end - len(word)) : end]) == word
        for word in request.params.bad_words
        for end in ends
    )


def _counts(scores: Tensor, token_ids: list[int], tree: DraftTree) -> Tensor:
    """Return how often each token occurs before each node, float32 [1 + nodes, vocab].

    Args:
        scores: Scores of the same shape.
        token_ids: Tokens before the tree.
        tree: Draft tree; the path to a node counts.
    """
    counts = torch.zeros_like(scores)
    if token_ids:
        counts += torch.bincount(
            torch.tensor(token_ids, device=scores.device), minlength=scores.shape[-1]
        )
    if tree.token_ids:
        nodes, ancestors = tree_shape(tuple(tree.parents))[1].nonzero()
        tokens = torch.tensor(tree.token_ids)[torch.from_numpy(ancestors)]
        indices = torch.from_numpy(nodes).to(scores.device) + 1, tokens.to(scores.device)
        counts.index_put_(indices, counts.new_ones(()), accumulate=True)
    return counts


def _completed(request: Request, tree: DraftTree) -> list[tuple[slice | list[int], int]]:
    """Return the tokens that complete a bad word, each with the rows before it.

    Row 0 is the root.
    """
    output, completions = request.output_ids, list[tuple[slice | list[int], int]]()
    for word in request.params.bad_words:
        *before, last = map(int, word)
        if not before:
            completions.append((slice(None), last))
            continue
        nodes = [
            node + 1 for node in range(-1, len(tree)) if _ends_with(output, tree, node, before)
        ]
        if nodes:
            completions.append((nodes, last))
    return completions


def _ends_with(output: list[int], tree: DraftTree, node: int, tokens: list[int]) -> bool:
    """Return whether the answer with the path to `node` ends with `tokens`."""
    left = len(tokens)
    while left and node >= 0:
        if tree.token_ids[node] != tokens[left - 1]:
            return False
        left, node = left - 1, tree.parents[node]
    return left == 0 or output[-left:] == tokens[:left]
