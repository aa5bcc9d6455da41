"""Verify the draft trees of a batch against the target's logits, by the rules of `rules`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from paceline.core.drafter import Outcome, TopTokens
from paceline.core.node_logits import NodeLogits
from paceline.core.not_numbers import NO_TOKEN, logits_error, take_token
from paceline.core.processors import OwnProcessors, Processed
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import DraftTree, node_depths
from paceline.cpu.topk import most_likely
from paceline.errors import ConfigError, PacelineError
from paceline.sampling import sampler
from paceline.sampling.logit_adjustments import adjusted, forbidden
from paceline.verification.logprobs import logprobs_of
from paceline.verification.outcomes import chosen, make_outcome, spoiled
from paceline.verification.rules import follow, reject

_LARGE = 4096  # tokens of a vocabulary from which on a draw takes more than its calls


def answers(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> tuple[Tensor | None, list[list[int]], list[list[int]]]:
    """What the target says after the root and after every node: scores, the token it chooses, its
    most likely token.

    Args:
        logits: as in `verify`.
    Returns:
        scores [batch, 1 + width, vocab] of `target_scores`, or None where the logits themselves say
        what is most likely; twice batch lists of tokens, 1 + nodes of each sequence or more;
        NO_TOKEN where the logits are not numbers.
    """
    if sampler.is_greedy(requests):
        best = _best(logits)
        return None, best, best
    scores = sampler.target_scores(logits.padded(), requests, trees)
    drawn = sampler.draw(scores, requests, trees)
    greedy = all(request.params.greedy for request in requests)
    return scores, drawn, drawn if greedy else most_likely(scores).tolist()


def _best(logits: NodeLogits) -> list[list[int]]:
    """The most likely token after the root and after every node of each sequence."""
    top = logits.top
    found = (
        most_likely(logits.flat)
        if top is None
        else np.where(top.probs[:, 0] > 0, top.token_ids[:, 0], NO_TOKEN)
    )
    best: list[int] = found.tolist()
    return [
        best[start : start + count]
        for start, count in zip(logits.starts, logits.counts, strict=True)
    ]


def verify(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
) -> list[Outcome]:
    """Decide what is emitted for each sequence of a batch.

    Args:
        logits: of each sequence after the root, then after every node.
    Returns:
        an outcome for each; one without tokens where the tree has to be left out, see `spoiled`.
    """
    scores: Tensor | None = None
    dtype = logits.flat.dtype
    drawn: Sequence[Sequence[int] | sampler.Draws]
    if _drawn_one_by_one(requests, trees, logits.flat):
        argmax = _best(logits)
        drawn = [
            argmax[row] if request.params.greedy else sampler.Draws(logits[row], request, tree)
            for row, (request, tree) in enumerate(zip(requests, trees, strict=True))
        ]
    else:
        scores, drawn, argmax = answers(requests, trees, logits)
    outcomes = []
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        said = argmax[row]
        if request.params.logits_processors:
            accepted, run = _process_row(request, tree, logits[row], said)
        elif tree.probs is None or request.params.greedy:
            accepted, run = follow(
                tree, chosen(request, tree, drawn[row], said, dtype), request.end_reason
            )
        else:
            assert scores is not None  # some request is sampled, and none is drawn one by one
            probs = scores[row, : 1 + len(tree)].softmax(-1)
            accepted, run = _reject_row(request, tree, probs.__getitem__, said, dtype)
        if request.params.adjusts and forbidden(request, run):
            request.failure = request.failure or _nothing_left()
        logprobs = None
        if request.params.logprobs is not None:
            walked = [0, *(node + 1 for node in accepted)][: len(run)]
            logprobs = logprobs_of(logits[row][walked], run, request.params.logprobs)
        outcomes.append(make_outcome(request, tree, accepted, run, said[: 1 + len(tree)], logprobs))
    return outcomes


def _drawn_one_by_one(
    requests: Sequence[Request], trees: Sequence[DraftTree], logits: Tensor
) -> bool:
    """Whether tokens are drawn as the walks ask for them: where asking is free, and nothing else
    is made of the scores.
    """
    if (
        logits.device.type != "cpu"
        or logits.shape[-1] < _LARGE
        or all(request.params.greedy for request in requests)
    ):
        return False
    changed = any(
        request.params.adjusts or request.params.logits_processors for request in requests
    )
    return not changed and all(tree.probs is None for tree in trees)


def with_top_tokens(outcomes: list[Outcome], logits: NodeLogits, count: int) -> list[Outcome]:
    """Add the target's `count` most likely tokens after the root and after every node to the
    outcomes of a step.

    Args:
        logits: with at least as many, the rows in the order of `outcomes`.
    """
    if not outcomes:
        return outcomes
    assert logits.top is not None, "asked for"
    token_ids, probs = logits.top.token_ids[:, :count], logits.top.probs[:, :count]
    spans = [
        slice(start, start + own) for start, own in zip(logits.starts, logits.counts, strict=True)
    ]
    return [
        replace(outcome, target_top=TopTokens(token_ids[span], probs[span]))
        for span, outcome in zip(spans, outcomes, strict=True)
    ]


def _reject_row(
    request: Request,
    tree: DraftTree,
    target: Callable[[int], Tensor],
    argmax: Sequence[int],
    dtype: torch.dtype,
) -> tuple[list[int], list[int]]:
    """Walk by `reject`, with the coins and draws of the request's seed.

    A node whose probabilities in the draft are NaN is never accepted.

    Args:
        target: probabilities [vocab] after the root (0), and after node i (1 + i).
        argmax, dtype: as for `chosen`.
    """
    seed, start = request.params.seed, len(request) - request.prompt_length
    depths = node_depths(tree.parents)

    def coin(node: int, chance: Tensor) -> bool:
        # A position is decided in one step only, so its coins are fresh; siblings differ by their
        # node.
        position = start + int(depths[node]) - 1
        return sampler.uniform(seed, position, sampler.ACCEPT, node) < float(chance)

    def draw(depth: int, weights: Tensor) -> int:
        return take_token(
            request, sampler.draw_one(weights, seed, start + depth, sampler.RESIDUAL), dtype
        )

    def weights(node: int) -> Tensor | None:
        return None if spoiled(tree, argmax, node) else target(node + 1)

    return reject(tree, weights, coin, draw, request.end_reason)


def _process_row(
    request: Request, tree: DraftTree, logits: Tensor, argmax: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Walk with logits processors, which are asked node by node, as far as the walk goes.

    Args:
        logits: [1 + nodes, vocab].
        argmax: their most likely tokens.
    """
    params, start = request.params, len(request) - request.prompt_length
    rows = adjusted(logits[None].float(), [request], [tree])[0]
    processed = request.processed
    if processed is None:
        ids = torch.tensor([request.token_ids], device=logits.device)
        processed = request.processed = Processed(OwnProcessors(params.logits_processors), ids)

    def scores(node: int) -> Tensor:
        told, path = len(processed), [tree.token_ids[above] for above in tree.path(node)]
        processed.extend([*request.token_ids[told:], *path[max(0, told - len(request)) :]])
        one = rows[node + 1][None]
        try:
            if request.failure is None:
                one = processed(one.clone())
        except ConfigError as error:
            request.failure = error
        largest = float(one.amax())
        if not math.isfinite(largest):
            request.failure = request.failure or _unusable(
                rows[node + 1], largest, params, logits.dtype
            )
        shaped: Tensor = sampler.shaped(one[None], [params])[0, 0]
        return shaped

    def choose(node: int) -> int:
        if spoiled(tree, argmax, node):
            return NO_TOKEN
        one = scores(node)
        if params.greedy:
            return int(one.argmax())
        position = start + len(tree.path(node))
        return take_token(
            request,
            sampler.draw_one(one.softmax(-1), params.seed, position, sampler.TARGET),
            logits.dtype,
        )

    if tree.probs is None or params.greedy:
        return follow(tree, choose, request.end_reason)
    return _reject_row(request, tree, lambda row: scores(row - 1).softmax(-1), argmax, logits.dtype)


def _unusable(
    scores: Tensor, largest: float, params: SamplingParams, dtype: torch.dtype
) -> PacelineError:
    """Return why no token can be chosen.

    Args:
        scores: [vocab], what the logits processors were given.
        largest: of what they returned; not finite.
        dtype: of the logits.
    """
    if not math.isfinite(float(scores.amax())):
        return logits_error(dtype)
    if largest == -math.inf:
        return _nothing_left()
    names = ", ".join(
        repr(getattr(one, "__name__", type(one).__name__)) for one in params.logits_processors
    )
    return ConfigError(
        f"logits_processors: got scores that are not numbers (NaN or infinite) from {names};"
        " expected finite ones, and -inf for what is forbidden. Correct the processor, or leave it"
        " out."
    )


def _nothing_left() -> ConfigError:
    return ConfigError(
        "got a request whose bad_words, min_tokens or logits_processors leave no token to go on"
        " with; expected one at least. Forbid less."
    )
