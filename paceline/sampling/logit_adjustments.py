"""What a request changes about the model's logits because of the token or of those before it, at
every node of its draft tree.

The order is vLLM's, and transformers' where it has the option: logit_bias, repetition penalty,
frequency and presence penalty, bad_words, min_tokens. A node's prefix is the sequence and the
node's own path, so that drafts change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.tree import DraftTree, tree_shape


def divisor(value: float) -> float:
    """Return `value` as logits can be divided by it: within 1e-30 and 1e30, as float32 ends not
    far off.
    """
    return min(max(value, 1e-30), 1e30)


def adjusted(scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree]) -> Tensor:
    """The scores with what each request asks for; the same tensor where none asks for anything.

    Args:
        scores: float32 [batch, 1 + width, vocab]; row 0 follows the root, row 1 + i follows node i.
        requests, trees: batch requests and the trees that were fed.
    Returns:
        as `scores`, forbidden tokens at -inf.
    """
    rows = [row for row, request in enumerate(requests) if request.params.adjusts]
    if not rows:
        return scores
    scores = scores.clone()
    for row in rows:
        _adjust(scores[row, : 1 + len(trees[row])], requests[row], trees[row])
    return scores


def _adjust(scores: Tensor, request: Request, tree: DraftTree) -> None:
    """Change the scores [1 + nodes, vocab] of one sequence in place."""
    params = request.params
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias), device=scores.device)
        scores[:, tokens] += torch.tensor(list(params.logit_bias.values()), device=scores.device)
    if params.repetition_penalty != 1.0:
        seen = _counts(scores, request.token_ids, tree) > 0
        penalty = divisor(params.repetition_penalty)
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
    if (
        has_tokens is not None
    ):  # where all is forbidden there is a distribution even so; `forbidden` tells
        scores.masked_fill_(has_tokens & ~(scores > -torch.inf).any(-1, keepdim=True), 0.0)


def forbidden(request: Request, run: list[int]) -> bool:
    """Whether `run`, tokens about to be appended, has one that is forbidden: there was no other
    to choose, then.
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
    """How often each token stands among `token_ids` and on the path to each node: float32 [1 +
    nodes, vocab].
    """
    counts = torch.zeros_like(scores)
    if token_ids:
        counts += torch.bincount(
            torch.tensor(token_ids, device=scores.device), minlength=scores.shape[-1]
        )
    if tree.token_ids:
        nodes, ancestors = tree_shape(tuple(tree.parents))[1].nonzero()
        tokens = torch.tensor(tree.token_ids)[torch.from_numpy(ancestors)]
        where = torch.from_numpy(nodes).to(scores.device) + 1, tokens.to(scores.device)
        counts.index_put_(where, counts.new_ones(()), accumulate=True)
    return counts


def _completed(request: Request, tree: DraftTree) -> list[tuple[slice | list[int], int]]:
    """The tokens that would complete a bad word, each with the rows (0 = the root) behind which
    it would.
    """
    output, found = request.output_ids, list[tuple[slice | list[int], int]]()
    for word in request.params.bad_words:
        *before, last = map(int, word)
        if not before:
            found.append((slice(None), last))
            continue
        nodes = [
            node + 1 for node in range(-1, len(tree)) if _ends_with(output, tree, node, before)
        ]
        if nodes:
            found.append((nodes, last))
    return found


def _ends_with(output: list[int], tree: DraftTree, node: int, tokens: list[int]) -> bool:
    """Whether the answer, `node` and the path to it included, ends with `tokens`."""
    left = len(tokens)
    while left and node >= 0:
        if tree.token_ids[node] != tokens[left - 1]:
            return False
        left, node = left - 1, tree.parents[node]
    return left == 0 or output[-left:] == tokens[:left]
