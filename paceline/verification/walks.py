"""Verify a single request's draft, using the request's seed and logits processors."""

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
from paceline.verification.batched_shares import NodeShares
from paceline.verification.outcomes import draft_may_cause_nan
from paceline.verification.rules import emit, follow, leaves_first, reject, traverse


def walk_sampled(
    request: Request,
    tree: DraftTree,
    target: Callable[[int], Tensor],
    argmax: Sequence[int],
    dtype: torch.dtype,
) -> tuple[list[int], list[int]]:
    """Verify a request's sampled draft, with random numbers from the request's seed.

    Logits processors must run once per token, in text order. Requests with logits processors
    therefore always use rejection sampling. A node whose draft probabilities are NaN is never
    accepted.

    Args:
        request: Request to verify.
        tree: Draft tree of the request.
        target: Function that returns the target's probabilities, [vocab]: after the root for
            argument 0, and after node i for argument 1 + i.
        argmax: Most likely token after the root and every node.
        dtype: Data type of the logits, for error messages.
    Returns:
        Accepted nodes and emitted tokens.
    """
    seed, start = request.params.seed, len(request) - request.prompt_length

    def draw(depth: int, weights: Tensor) -> int:
        token = sampler.draw_one(weights, seed, start + depth, sampler.RESIDUAL)
        return take_token(request, token, dtype)

    def weights(node: int) -> Tensor | None:
        return None if _is_last(request, tree, argmax, node) else target(node + 1)

    leaf_first = tree.leaf_first and not request.params.logits_processors
    walk = traverse if leaf_first else reject
    return walk(tree, weights, _coin_of(request, tree, leaf_first), draw, request.end_reason)


def _is_last(request: Request, tree: DraftTree, argmax: Sequence[int], node: int) -> bool:
    """Return whether the accepted path must end at a node.

    This is the case if the node ends the text, or if the draft tree may have caused NaN logits.
    """
    # Logits processors may reject a text that has ended, so they must not run on it.
    ends = node >= 0 and tree.token_ids[node] in request.eos_token_ids
    return ends or draft_may_cause_nan(tree, argmax, node)


def walk_prepared(
    request: Request,
    tree: DraftTree,
    shares: NodeShares,
    argmax: Sequence[int],
    dtype: torch.dtype,
) -> tuple[list[int], list[int]]:
    """Verify a request's sampled draft with values precomputed for the whole tree.

    Args:
        request: Request to verify.
        tree: Draft tree of the request.
        shares: Acceptance probability of each node; and for the root and each node, the token that
            follows if all descendants are rejected.
        argmax: Most likely token after the root and every node.
        dtype: Data type of the logits, for error messages.
    Returns:
        Accepted nodes and emitted tokens, as from `walk_sampled`.
    """
    is_below = _coin_of(request, tree, tree.leaf_first)
    is_last = [_is_last(request, tree, argmax, node) for node in range(-1, len(tree))]
    if tree.leaf_first:
        last = _last_from_leaves(tree, is_last, shares, is_below)
    else:
        last = _last_from_root(tree, is_last, shares, is_below)

    def draw(depth: int) -> int:
        return take_token(request, shares.tokens[last + 1], dtype)

    return emit(tree, last, None if is_last[last + 1] else draw, request.end_reason)


_Coin = Callable[[int, Any], bool]


def _last_from_leaves(
    tree: DraftTree, is_last: Sequence[bool], shares: NodeShares, is_below: _Coin
) -> int:
    """Return the last node of the path that `rules.traverse` would accept, or -1.

    Args:
        tree: Draft tree.
        is_last: For the root and each node, whether the path must end there.
        shares: Precomputed acceptance probabilities.
        is_below: Function that decides at random whether to accept a node.
    """
    is_open = [True]  # for each row, whether tokens may follow all of its ancestors
    for parent in tree.parents:
        is_open.append(is_open[parent + 1] and not is_last[parent + 1])

    def accepts(node: int) -> bool:
        chances = shares.reaches if is_last[node + 1] else shares.chances
        return is_open[node + 1] and is_below(node, chances[node])

    return next(node for node in leaves_first(tree) if node < 0 or accepts(node))


def _last_from_root(
    tree: DraftTree, is_last: Sequence[bool], shares: NodeShares, is_below: _Coin
) -> int:
    """Return the last node of the path that `rules.reject` would accept, or -1.

    Args:
        tree: Draft tree.
        is_last: For the root and each node, whether the path must end there.
        shares: Precomputed acceptance probabilities.
        is_below: Function that decides at random whether to accept a node.
    """
    children = tree.children()
    node = -1
    while not is_last[node + 1]:
        siblings = children[node + 1]
        child = next((c for c in siblings if is_below(c, shares.reaches[c])), None)
        if child is None:
            break
        node = child
    return node


def _coin_of(request: Request, tree: DraftTree, leaf_first: bool) -> _Coin:
    """Return a function that decides at random whether to accept a node.

    The function receives a node and its acceptance probability. It returns True if the node's
    random number is below this probability. The random number is computed from the request's seed,
    the node, and a position in the answer:

    - Rejection sampling tests each position in only one step, so it uses the node's own position.
    - Traversal verification may test a position again in a later step, and then needs new random
      numbers. It therefore uses the step's first position for all nodes.
    """
    seed, start = request.params.seed, len(request) - request.prompt_length
    depths = node_depths(tree.parents)

    def is_below(node: int, probability: Any) -> bool:
        position = start if leaf_first else start + int(depths[node]) - 1
        return sampler.uniform(seed, position, sampler.ACCEPT, node) < float(probability)

    return is_below


def walk_processed(
    request: Request, tree: DraftTree, logits: Tensor, argmax: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Verify a request with logits processors, which run only at the visited nodes.

    Args:
        request: Request to verify.
        tree: Draft tree of the request.
        logits: Logits after the root and every node, [1 + nodes, vocab].
        argmax: Most likely token after the root and every node.
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
    """Runs a request's logits processors on the scores after a node, on demand.

    Args:
        request: Request with logits processors.
        tree: Draft tree of the request.
        logits: Logits after the root and every node, [1 + nodes, vocab].
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
        """Run the logits processors after a node, and return the resulting scores.

        Args:
            node: Node after which a token is chosen; -1 is the root.
        Returns:
            The processed scores, [vocab], and the largest of them.
        """
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
        """Mark the request as failed if no token can be chosen after a node.

        Args:
            node: Node to check; -1 is the root.
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
    """Return the error for a request whose scores allow no token to be chosen.

    Args:
        scores: Scores that the logits processors received, [vocab].
        largest: Largest score that the logits processors returned, which is not finite.
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
        "bad_words, \0min_tokens\0 or logits_processors of the request forbid every next token."
        " Forbid fewer tokens."
    )
