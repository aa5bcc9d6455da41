"""Verify one request by either rule, with its seed and its logits processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.core.not_numbers import NO_TOKEN, logits_error, take_token
from paceline.core.processors import OwnProcessors, Processed
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree, node_depths
from paceline.errors import ConfigError, PacelineError
from paceline.sampling import sampler
from paceline.sampling.logit_adjustments import adjust_scores
from paceline.sampling.warping import warp_scores
from paceline.util.device_copies import fetch, upload
from paceline.verification.batched_rejection import Rejections
from paceline.verification.outcomes import draft_may_cause_nan
from paceline.verification.rules import follow, reject, try_children


def walk_sampled(
    request: Request,
    tree: DraftTree,
    target: Callable[[int], Tensor],
    argmax: Sequence[int],
    dtype: torch.dtype,
) -> tuple[list[int], list[int]]:
    """Verify one request by rejection sampling, with random numbers from its seed.

    A node whose draft probabilities are NaN is never accepted.

    Args:
        request: Request to verify.
        tree: Its draft tree.
        target: Function that returns the probabilities [vocab] after the root (0) or after node i
            (1 + i).
        argmax: As in `token_chooser`.
        dtype: As in `token_chooser`.
    Returns:
        Accepted nodes and emitted tokens.
    """
    seed, start = request.params.seed, len(request) - request.prompt_length
    is_below = _coin_of(request, tree)

    def draw(depth: int, weights: Tensor) -> int:
        token = sampler.draw_one(weights, seed, start + depth, sampler.RESIDUAL)
        return take_token(request, token, dtype)

    def weights(node: int) -> Tensor | None:
        return None if draft_may_cause_nan(tree, argmax, node) else target(node + 1)

    return reject(tree, weights, is_below, draw, request.end_reason)


def walk_prepared(
    request: Request,
    tree: DraftTree,
    rejections: Rejections,
    argmax: Sequence[int],
    dtype: torch.dtype,
) -> tuple[list[int], list[int]]:
    """Run `walk_sampled` with results that were computed for the whole tree.

    Args:
        request: Request to verify.
        tree: Its draft tree.
        rejections: Results for the tree.
        argmax: As in `token_chooser`.
        dtype: As in `token_chooser`.
    """
    is_below = _coin_of(request, tree)
    return try_children(
        tree,
        lambda node: not draft_may_cause_nan(tree, argmax, node),
        lambda child: is_below(child, rejections.chances[child]),
        lambda node, depth: take_token(request, rejections.tokens[node + 1], dtype),
        request.end_reason,
    )


def _coin_of(request: Request, tree: DraftTree) -> Callable[[int, Any], bool]:
    """Return a function that compares a node's random number with a probability."""
    seed, start = request.params.seed, len(request) - request.prompt_length
    depths = node_depths(tree.parents)

    def is_below(node: int, probability: Any) -> bool:
        # Each position is decided in only one step, so its random numbers are new. Siblings differ
        # by node.
        position = start + int(depths[node]) - 1
        return sampler.uniform(seed, position, sampler.ACCEPT, node) < float(probability)

    return is_below


def walk_processed(
    request: Request, tree: DraftTree, logits: Tensor, argmax: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Verify one request with logits processors, which run on demand at each node.

    Args:
        request: Request to verify.
        tree: Its draft tree.
        logits: Logits [1 + nodes, vocab].
        argmax: Most likely token of each row.
    Returns:
        Accepted nodes and emitted tokens.
    """
    params, start = request.params, len(request) - request.prompt_length
    scores = _ProcessedScores(request, tree, logits)

    def choose(node: int) -> int:
        if draft_may_cause_nan(tree, argmax, node):
            return NO_TOKEN
        row, largest = scores(node)
        if params.greedy:
            chosen = row.argmax(-1)
        else:
            position = start + len(tree.path(node))
            chosen = sampler.draw_row(row.softmax(-1), params.seed, position, sampler.TARGET)
        top, token = (array.item() for array in fetch(largest, chosen))
        scores.check(node, top)
        return take_token(request, token, logits.dtype)

    def checked(row: int) -> Tensor:
        warped, largest = scores(row - 1)
        scores.check(row - 1, float(largest))
        return warped.softmax(-1)

    if tree.probs is None or params.greedy:
        return follow(tree, choose, request.end_reason)
    return walk_sampled(request, tree, checked, argmax, logits.dtype)


class _ProcessedScores:
    """Scores at a request's nodes after its logits processors, computed on demand.

    Args:
        request: Request with logits processors.
        tree: Its draft tree.
        logits: Logits [1 + nodes, vocab].
    """

    def __init__(self, request: Request, tree: DraftTree, logits: Tensor) -> None:
        self._request, self._tree, self._dtype = request, tree, logits.dtype
        self._rows = adjust_scores(logits[None].float(), [request], [tree])[0]
        if request.processed is None:
            (ids,) = upload(logits.device, request.token_ids)
            processors = OwnProcessors(request.params.logits_processors)
            request.processed = Processed(processors, ids[None])
        self._processed = request.processed

    def __call__(self, node: int) -> tuple[Tensor, Tensor]:
        """Return the scores [vocab] after a node, and the largest for `check`."""
        request, tree, processed = self._request, self._tree, self._processed
        num_seen = len(processed)
        path = [tree.token_ids[ancestor] for ancestor in tree.path(node)]
        processed.extend([*request.token_ids[num_seen:], *path[max(0, num_seen - len(request)) :]])
        row = self._rows[node + 1][None]
        try:
            if request.failure is None:
                row = processed(row.clone())
        except ConfigError as error:
            request.failure = error
        return warp_scores(row[None], [request.params])[0, 0], row.amax()

    def check(self, node: int, largest: float) -> None:
        """Fail the request if no token can be chosen after a node.

        Args:
            node: The node.
            largest: Largest score after the logits processors.
        """
        request = self._request
        if not math.isfinite(largest):
            request.failure = request.failure or _unusable(
                self._rows[node + 1], largest, request.params, self._dtype
            )


def _unusable(
    scores: Tensor, largest: float, params: SamplingParams, dtype: torch.dtype
) -> PacelineError:
    """Return the error for a request for which no token can be chosen.

    Args:
        scores: Scores [vocab] that the logits processors received.
        largest: Largest score that the processors returned; not finite.
        params: Sampling parameters of the request.
        dtype: Data type of the logits.
    """
    if not math.isfinite(float(scores.amax())):
        return logits_error(dtype)
    if largest == -math.inf:
        return forbidden_error()
    names = ", ".join(
        repr(getattr(processor, "__name__", type(processor).__name__))
        for processor in params.logits_processors
    )
    return ConfigError(
        f"logits_processors: got scores that are not numbers (NaN or infinite) from {names};"
        " expected finite scores, or -inf for forbidden tokens. Correct the processor, or leave it"
        " out."
    )


def forbidden_error() -> ConfigError:
    """Return the error for a request whose options forbid every next token."""
    return ConfigError(
        "bad_words, min_tokens or logits_processors of the request forbid every next token. Forbid"
        " fewer tokens."
    )
