"""Adjust logits for biases, penalties, bad words and minimum length.

The order is vLLM's, and transformers' for the options that it has: logit_bias, repetition penalty,
frequency and presence penalty, bad_words, min_tokens. The prefix of a node is the request's text
and the path to the node, so drafts change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.sampling.adjustment_places import bans_tokens, counts_tokens, find_places
from paceline.sampling.token_counts import ANSWER, TEXT, count_changes, counts_of
from paceline.util.device_copies import upload


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
    batch, width, vocab = scores.shape
    own, own_trees = [requests[row] for row in rows], [trees[row] for row in rows]
    which = np.concatenate(
        [
            row * width + np.arange(1 + len(tree), dtype=np.int64)
            for row, tree in zip(rows, own_trees, strict=True)
        ]
    )
    places = find_places(own, own_trees, vocab)
    changes = count_changes(own, vocab) if any(map(counts_tokens, own)) else ()
    row_index, *copied = upload(scores.device, which, *places, *changes)
    on_device = _OnDevice(*copied[: len(places)])
    counts = counts_of(own, copied[len(places) :], vocab) if changes else None
    flat, is_all = scores.reshape(-1, vocab), len(which) == batch * width
    adjusted = flat.clone() if is_all else flat[row_index]
    if len(places.biased):
        adjusted.view(-1).index_add_(0, on_device.biased, on_device.biases)
    if counts is not None:
        adjusted = _penalise(adjusted, counts, on_device, own)
    if any(map(bans_tokens, own)):
        _ban(adjusted, on_device.banned)
    return (adjusted if is_all else flat.index_copy(0, row_index, adjusted)).view_as(scores)


class _OnDevice(NamedTuple):
    """Hold `Places` on the device."""

    owner: Tensor
    penalties: Tensor
    paths: Tensor
    biased: Tensor
    biases: Tensor
    banned: Tensor


def _penalise(
    scores: Tensor, counts: Tensor, places: _OnDevice, requests: Sequence[Request]
) -> Tensor:
    """Return scores [rows, vocab] with the penalties on tokens of the text.

    Args:
        scores: Scores; changed in place.
        counts: Counts of the requests' tokens, from `counts_of`.
        places: Places of the scores' rows.
        requests: The requests.
    """
    repetition, frequency, presence = places.penalties[..., None]
    if any(request.params.repetition_penalty != 1.0 for request in requests):
        seen = _counts_at(counts[:, TEXT], places) > 0
        penalised = torch.where(scores < 0, scores * repetition, scores / repetition)
        scores = torch.where(seen, penalised, scores)
    if any(r.params.frequency_penalty or r.params.presence_penalty for r in requests):
        answer = _counts_at(counts[:, ANSWER], places)
        scores -= frequency * answer
        scores -= presence * (answer > 0)
    return scores


def _counts_at(counts: Tensor, places: _OnDevice) -> Tensor:
    """Return counts of tokens before each row's node, float32 [rows, vocab].

    Args:
        counts: Counts before the trees, [requests, vocab].
        places: Places of the rows.
    """
    if not len(places.paths) and len(places.owner) == len(counts):
        return counts
    at_nodes = counts[places.owner]
    ones = torch.ones_like(places.paths, dtype=at_nodes.dtype)
    at_nodes.view(-1).index_add_(0, places.paths, ones)
    return at_nodes


def _ban(scores: Tensor, banned: Tensor) -> None:
    """Set scores [rows, vocab] at the banned places to -inf, in place."""
    had_tokens = (scores > -torch.inf).any(-1, keepdim=True)
    scores.view(-1).index_fill_(0, banned, -torch.inf)
    # If all tokens are forbidden, keep a distribution; `contains_forbidden_token` reports it.
    scores.masked_fill_(had_tokens & ~(scores > -torch.inf).any(-1, keepdim=True), 0.0)


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
