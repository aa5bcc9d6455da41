"""Verify a batch's draft trees against the target's logits.

`rules` defines the verification rules, and `walks` applies them to individual requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from paceline.backend.resolve import argmax_tokens
from paceline.core.drafter import Outcome, TopTokens
from paceline.core.node_logits import NodeLogits
from paceline.core.not_numbers import NO_TOKEN
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.sampling import sampler
from paceline.sampling.logit_adjustments import contains_forbidden_token
from paceline.util.device_copies import fetch
from paceline.verification.batched_shares import NodeShares, prepare_shares
from paceline.verification.outcomes import make_outcome, token_chooser
from paceline.verification.rules import follow, follow_chosen
from paceline.verification.settings import MIN_LAZY_VOCABULARY
from paceline.verification.walks import (
    forbidden_error,
    walk_prepared,
    walk_processed,
    walk_sampled,
)


class TargetTokens(NamedTuple):
    """The target's tokens after the root and after every node of each request.

    Attributes:
        tokens: Tokens chosen by the target.
        argmax: Most likely tokens; NO_TOKEN if the logits are NaN or infinite.
        top: Top tokens of each row of the logits, if requested.
        scores: Scores from `target_scores`, [batch, 1 + width, vocab]; None if not computed.
        shares: Precomputed values for verifying sampled drafts, by batch row.
    """

    tokens: Sequence[Sequence[int] | sampler.LazyDraws]
    argmax: list[list[int]]
    top: TopTokens | None = None
    scores: Tensor | None = None
    shares: Mapping[int, NodeShares] = {}


def target_tokens(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> TargetTokens:
    """Return the target's chosen tokens and most likely tokens for a batch.

    The function waits for the device once, and again whenever top_k, top_p or min_p requires more
    tokens to be sorted.

    Args:
        requests: Requests of the batch.
        trees: Verified draft trees.
        logits: Logits after the root and after every node of each request.
    """
    if sampler.is_greedy(requests):
        argmax, top = best_tokens(logits)
        return TargetTokens(argmax, argmax, top)
    greedy = all(request.params.greedy for request in requests)
    top_logits = () if logits.top is None else logits.top.tensors
    sampled = [row for row in range(len(requests)) if _is_sampled(requests[row], trees[row])]
    prepares = bool(sampled) and logits.flat.device.type != "cpu"
    finish = None

    def others(scores: Tensor, tokens: Tensor) -> list[Tensor]:
        nonlocal finish
        wanted = [*top_logits] if greedy else [*top_logits, argmax_tokens(scores)]
        if prepares:
            tensors, finish = prepare_shares(scores, requests, trees, sampled)
            wanted += tensors
        return wanted

    scores, tokens, copied = sampler.draw_tokens(logits.padded(), requests, trees, others=others)
    top = None if logits.top is None else logits.top.tokens(copied[: len(top_logits)])
    copied = copied[len(top_logits) :]
    argmax = tokens if greedy else copied[0].tolist()
    shares = {} if finish is None else finish(copied[1:])
    return TargetTokens(tokens, argmax, top, scores, shares)


def _is_sampled(request: Request, tree: DraftTree) -> bool:
    """Return whether a tree's acceptance probabilities come from the batch's scores.

    Such a tree has sampled nodes. Greedy requests ignore the nodes' distributions, and requests
    with logits processors compute their own scores (`walk_processed`).
    """
    params = request.params
    return not (tree.probs is None or params.greedy or params.logits_processors)


def best_tokens(logits: NodeLogits) -> tuple[list[list[int]], TopTokens | None]:
    """Return the most likely token after the root and every node of each request.

    The second return value contains the top tokens of each row, or None if they were not requested.
    """
    top = None
    if logits.top is None:
        (token_ids,) = fetch(argmax_tokens(logits.flat))
        best: list[int] = token_ids.tolist()
    else:
        top = logits.top.tokens(fetch(*logits.top.tensors))
        best, probs = top.token_ids[:, 0].tolist(), top.probs[:, 0].tolist()
        if 0.0 in probs:
            best = [token if prob else NO_TOKEN for token, prob in zip(best, probs, strict=True)]
    spans = zip(logits.starts, logits.counts, strict=True)
    return [best[start : start + count] for start, count in spans], top


def verify(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> list[Outcome]:
    """Decide which tokens each request in a batch emits.

    Args:
        requests: Requests of the batch.
        trees: Draft trees to verify.
        logits: Logits after the root and every node of each request. If `logits` contains top
            tokens, the function adds them to the outcomes.
    Returns:
        One outcome per request. An outcome has no tokens if the request must run again without its
        tree; see `draft_may_cause_nan`.
    """
    target = _target_tokens(requests, trees, logits)
    tops = split_top_tokens(logits, target.top)
    outcomes = []
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        accepted, run = _walk(request, tree, row, logits, target)
        if request.params.adjusts and contains_forbidden_token(request, run):
            request.failure = request.failure or forbidden_error()
        argmax = target.argmax[row][: 1 + len(tree)]
        outcomes.append(make_outcome(request, tree, accepted, run, argmax, tops[row]))
    return outcomes


def _target_tokens(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> TargetTokens:
    """Return the target's tokens, sampled lazily if `_can_draw_lazily` allows it."""
    if not _can_draw_lazily(requests, trees, logits.flat):
        return target_tokens(requests, trees, logits)
    argmax, top = best_tokens(logits)
    tokens = [
        argmax[row] if request.params.greedy else sampler.LazyDraws(logits[row], request, tree)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True))
    ]
    return TargetTokens(tokens, argmax, top)


def _walk(
    request: Request, tree: DraftTree, row: int, logits: NodeLogits, target: TargetTokens
) -> tuple[list[int], list[int]]:
    """Return the accepted nodes and emitted tokens of one request.

    Args:
        request: Request to verify.
        tree: Draft tree of the request.
        row: Index of the request in the batch.
        logits: Logits of the batch.
        target: The target's tokens for the batch.
    """
    argmax, dtype = target.argmax[row], logits.flat.dtype
    if request.params.logits_processors:
        return walk_processed(request, tree, logits[row], argmax)
    if not _is_sampled(request, tree):
        if target.tokens[row] is argmax and request.stop is None and NO_TOKEN not in argmax:
            return follow_chosen(tree, argmax, request.eos_token_ids, request.remaining)
        choose = token_chooser(request, tree, target.tokens[row], argmax, dtype)
        return follow(tree, choose, request.end_reason)
    if row in target.shares:
        return walk_prepared(request, tree, target.shares[row], argmax, dtype)
    assert target.scores is not None  # lazy only if no tree has draft probabilities
    probs = target.scores[row, : 1 + len(tree)].softmax(-1)
    return walk_sampled(request, tree, probs.__getitem__, argmax, dtype)


def _can_draw_lazily(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: Tensor
) -> bool:
    """Return whether to sample only the tokens that the verification rule reads.

    Lazy sampling requires a large vocabulary and at least one sampled request. No request may
    change its logits, and no draft token may be sampled. Lazy sampling also requires a CPU, because
    reading a token from a different device would need synchronisation.
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


def split_top_tokens(logits: NodeLogits, top: TopTokens | None) -> Sequence[TopTokens | None]:
    """Split the top tokens of a batch into one `TopTokens` object per request.

    Args:
        logits: Logits of the requests.
        top: Top tokens of each row of the logits; None if they were not requested.
    Returns:
        Top tokens after the root and every node of each request; None for each request if they were
        not requested.
    """
    if top is None:
        return [None] * len(logits)
    token_ids, probs = top.token_ids, top.probs
    return [
        TopTokens(token_ids[start : start + count], probs[start : start + count])
        for start, count in zip(logits.starts, logits.counts, strict=True)
    ]
