"""Verify a batch's draft trees against the target's logits.

`rules` defines the two verification rules; `walks` applies them to individual requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from paceline.backend.resolve import argmax_tokens
from paceline.core.drafter import Outcome, TopTokens
from paceline.core.node_logits import NodeLogits
from paceline.core.not_numbers import NO_TOKEN
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.sampling import sampler
from paceline.sampling.logit_adjustments import contains_forbidden_token
from paceline.verification.logprobs import logprobs_of
from paceline.verification.outcomes import make_outcome, token_chooser
from paceline.verification.rules import follow
from paceline.verification.settings import MIN_LAZY_VOCABULARY
from paceline.verification.walks import forbidden_error, walk_processed, walk_sampled


class TargetTokens(NamedTuple):
    """The target's tokens after the root and after every node, for each request.

    Attributes:
        scores: Scores [batch, 1 + width, vocab] from `target_scores`; None = not computed.
        tokens: Token that the target chooses.
        argmax: Most likely token; NO_TOKEN = the logits are not numbers.
    """

    scores: Tensor | None
    tokens: Sequence[Sequence[int] | sampler.LazyDraws]
    argmax: list[list[int]]


def target_tokens(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> tuple[Tensor | None, list[list[int]], list[list[int]]]:
    """Return the target's scores, chosen tokens and most likely tokens for a batch.

    Args:
        requests: Requests of the batch.
        trees: Verified draft trees.
        logits: Logits after the root and after every node of each request.
    Returns:
        Scores [batch, 1 + width, vocab] from `target_scores`; None = the logits are the scores.
        They are followed by the chosen tokens and the most likely tokens, at least 1 + nodes per
        request. NO_TOKEN marks logits that are not numbers.
    """
    if sampler.is_greedy(requests):
        best = _best(logits)
        return None, best, best
    scores = sampler.target_scores(logits.padded(), requests, trees)
    drawn = sampler.draw(scores, requests, trees)
    greedy = all(request.params.greedy for request in requests)
    return scores, drawn, drawn if greedy else argmax_tokens(scores).tolist()


def _best(logits: NodeLogits) -> list[list[int]]:
    """Return the most likely token after the root and every node of each request."""
    top = logits.top
    token_ids = (
        argmax_tokens(logits.flat)
        if top is None
        else np.where(top.probs[:, 0] > 0, top.token_ids[:, 0], NO_TOKEN)
    )
    best: list[int] = token_ids.tolist()
    return [
        best[start : start + count]
        for start, count in zip(logits.starts, logits.counts, strict=True)
    ]


def verify(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> list[Outcome]:
    """Decide which tokens each request in a batch emits.

    Args:
        requests: Requests of the batch.
        trees: Draft trees to verify.
        logits: Logits after the root and after every node of each request.
    Returns:
        One outcome per request. It has no tokens if the request must run again without its tree;
        see `draft_may_cause_nan`.
    """
    target = _target_tokens(requests, trees, logits)
    outcomes = []
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        accepted, run = _walk(request, tree, row, logits, target)
        if request.params.adjusts and contains_forbidden_token(request, run):
            request.failure = request.failure or forbidden_error()
        logprobs = None
        if request.params.logprobs is not None:
            walked = [0, *(node + 1 for node in accepted)][: len(run)]
            logprobs = logprobs_of(logits[row][walked], run, request.params.logprobs)
        argmax = target.argmax[row][: 1 + len(tree)]
        outcomes.append(make_outcome(request, tree, accepted, run, argmax, logprobs))
    return outcomes


def _target_tokens(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> TargetTokens:
    """Return the target's tokens; sampled on access if that saves time."""
    if not _can_draw_lazily(requests, trees, logits.flat):
        return TargetTokens(*target_tokens(requests, trees, logits))
    argmax = _best(logits)
    tokens = [
        argmax[row] if request.params.greedy else sampler.LazyDraws(logits[row], request, tree)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True))
    ]
    return TargetTokens(None, tokens, argmax)


def _walk(
    request: Request, tree: DraftTree, row: int, logits: NodeLogits, target: TargetTokens
) -> tuple[list[int], list[int]]:
    """Return the accepted nodes and emitted tokens for the request in the given `row`."""
    argmax, dtype = target.argmax[row], logits.flat.dtype
    if request.params.logits_processors:
        return walk_processed(request, tree, logits[row], argmax)
    if tree.probs is None or request.params.greedy:
        choose = token_chooser(request, tree, target.tokens[row], argmax, dtype)
        return follow(tree, choose, request.end_reason)
    assert target.scores is not None  # lazy only if no tree has draft probabilities
    probs = target.scores[row, : 1 + len(tree)].softmax(-1)
    return walk_sampled(request, tree, probs.__getitem__, argmax, dtype)


def _can_draw_lazily(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: Tensor
) -> bool:
    """Return whether to sample only the tokens that the verification rule reads.

    This requires a CPU, where reading a token costs no synchronisation, and scores that are not
    used otherwise.
    """
    if (
        logits.device.type != "cpu"
        or logits.shape[-1] < MIN_LAZY_VOCABULARY
        or all(request.params.greedy for request in requests)
    ):
        return False
    changed = any(
        request.params.adjusts or request.params.logits_processors for request in requests
    )
    return not changed and all(tree.probs is None for tree in trees)


def with_top_tokens(outcomes: list[Outcome], logits: NodeLogits, count: int) -> list[Outcome]:
    """Add the target's top tokens after the root and every node to outcomes.

    Args:
        outcomes: Outcomes in a step.
        logits: Logits with at least `count` top tokens, with rows in the order of `outcomes`.
        count: Number of top tokens.
    """
    if not outcomes:
        return outcomes
    assert logits.top is not None, "the caller adds the top tokens"
    token_ids, probs = logits.top.token_ids[:, :count], logits.top.probs[:, :count]
    spans = [
        slice(start, start + num_rows)
        for start, num_rows in zip(logits.starts, logits.counts, strict=True)
    ]
    return [
        replace(outcome, target_top=TopTokens(token_ids[span], probs[span]))
        for span, outcome in zip(spans, outcomes, strict=True)
    ]
