"""Apply biases, penalties, bad words and the minimum length to logits.

The order is the same as in vLLM and transformers: logit_bias, repetition penalty, frequency and
presence penalty, bad_words, min_tokens. At each node of a draft tree, the adjustments depend on the
request's text and on the path to the node. Draft trees therefore do not change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.sampling.penalties import penalise
from paceline.sampling.score_indices import bans_tokens, counts_tokens, find_score_indices
from paceline.sampling.token_counts import count_changes, counts_of
from paceline.util.device_copies import upload


def adjust_scores(
    scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree]
) -> Tensor:
    """Apply each request's biases, penalties and forbidden tokens to its scores.

    Args:
        scores: Logits, float32 [batch, 1 + width, vocab]. Row 0 belongs to the root, row 1 + i to
            node i.
        requests: Requests of the batch.
        trees: Draft tree of each request.
    Returns:
        Adjusted scores, with forbidden tokens at -inf. If no request needs adjustments, the
        function returns the tensor `scores` itself.
    """
    rows = [row for row, request in enumerate(requests) if request.params.adjusts]
    if not rows:
        return scores
    batch, width, vocab = scores.shape
    own, own_trees = [requests[row] for row in rows], [trees[row] for row in rows]
    which = [row * width + node for row in rows for node in range(1 + len(trees[row]))]
    indices = find_score_indices(own, own_trees, vocab)
    changes = count_changes(own, vocab) if any(map(counts_tokens, own)) else ()
    row_index, owner, penalties, paths, biased, biases, banned, *changed = upload(
        scores.device, which, *indices, *changes
    )
    flat, is_all = scores.reshape(-1, vocab), len(which) == batch * width
    adjusted = flat.clone() if is_all else flat[row_index]
    if len(indices.biased):
        adjusted.view(-1).index_add_(0, biased, biases)
    if changes:
        counts = counts_of(own, changed, vocab)
        penalise(adjusted, counts, indices, (owner, penalties, paths), own)
    if any(map(bans_tokens, own)):
        _ban(adjusted, banned)
    return (adjusted if is_all else flat.index_copy(0, row_index, adjusted)).view_as(scores)


def _ban(scores: Tensor, banned: Tensor) -> None:
    """Set the scores [rows, vocab] at the given flat indices to -inf, in place."""
    had_tokens = (scores > -torch.inf).any(-1, keepdim=True)
    scores.view(-1).index_fill_(0, banned, -torch.inf)
    # If all tokens are forbidden, keep a valid distribution: `contains_forbidden_token` reports
    # the token that is drawn from it.
    scores.masked_fill_(had_tokens & ~(scores > -torch.inf).any(-1, keepdim=True), 0.0)


def contains_forbidden_token(request: Request, run: list[int]) -> bool:
    """Return whether bad_words or min_tokens forbids any of the new tokens.

    Args:
        request: Request that emits the tokens.
        run: New tokens, which are not yet appended to the request.
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
