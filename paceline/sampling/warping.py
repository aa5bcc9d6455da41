"""Apply temperature, top_k, top_p and min_p to scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.sampling_params import SamplingParams
from paceline.sampling.score_indices import clamp_divisor
from paceline.sampling.settings import (
    DEVICE_SORTED_TOKENS,
    MIN_PLAIN_TEMPERATURE,
    SORTED_GROWTH,
    SORTED_TOKENS,
)
from paceline.util.device_copies import upload


class Warped(NamedTuple):
    """Scores after temperature, top_k, top_p and min_p; invalid if `is_short` is true.

    The nucleus is the set of tokens that pass top_k, top_p and min_p. To find the nucleus,
    `try_warp` sorts only the most likely tokens.

    Attributes:
        scores: Scores [batch, rows, vocab], with tokens outside the nucleus at -inf.
        num_sorted: Number of most likely tokens that were sorted per row.
        is_short: Whether the nucleus of any row may contain more tokens than were sorted, bool []
            on the device. None if the number of sorted tokens is known to suffice.
    """

    scores: Tensor
    num_sorted: int = 0
    is_short: Tensor | None = None


class _SamplingLimits(NamedTuple):
    """Sampling limits of all requests in a batch; each is a tensor [batch, 1, 1].

    Attributes:
        top_k: Maximum number of tokens. The vocabulary size if there is no limit.
        top_p: Total probability at which the nucleus ends. 1 if there is no limit.
        min_p: Minimum probability, as a fraction of the most likely token's probability. 0 if
            there is no limit.
        is_unlimited: Whether a request has none of these limits.
    """

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    is_unlimited: Tensor


def warp_scores(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply temperature, top_k, top_p and min_p to the scores of each request.

    Args:
        scores: Scores [batch, rows, vocab].
        params: Sampling parameters of each request. The scores of greedy requests do not change.
    Returns:
        Scores in the same shape, with tokens outside the nucleus at -inf.
    """
    warped = try_warp(scores, params)
    while warped.is_short is not None and bool(warped.is_short):
        warped = try_warp(scores, params, warped.num_sorted)
    return warped.scores


def try_warp(scores: Tensor, params: Sequence[SamplingParams], too_few: int = 0) -> Warped:
    """Try to compute `warp_scores` without waiting for the device.

    Args:
        scores: Scores [batch, rows, vocab].
        params: Sampling parameters of each request.
        too_few: Number of tokens that the previous attempt sorted, which was not enough. 0 in the
            first attempt.
    Returns:
        The scores. If `Warped.is_short` is true, they are invalid, and the caller must try again.
    """
    if all(p.greedy for p in params):
        return Warped(scores)
    heated = any(p.temperature not in (0.0, 1.0) for p in params)
    limited = any(map(_is_limited, params))
    if not (heated or limited):
        return Warped(scores)
    divisors, is_cold, *rest = _upload(scores, params)
    if heated:
        if any((p.temperature or 1.0) < MIN_PLAIN_TEMPERATURE for p in params):
            # At tiny temperatures, shift the scores so that the best one is 0, to avoid overflow.
            scores = torch.where(is_cold, scores - scores.amax(-1, keepdim=True), scores)
        scores = scores / divisors
    if not limited:
        return Warped(scores)
    limits = _SamplingLimits(*rest)
    waits, vocab = scores.device.type == "cpu", scores.shape[-1]
    most = max((_top_k(p, 0) for p in params if _top_k(p, 0) < vocab), default=0)
    num_sorted = max(SORTED_TOKENS, most) if waits else max(DEVICE_SORTED_TOKENS, most + 1)
    nucleus = _find_nucleus(scores, limits, SORTED_GROWTH * too_few or num_sorted)
    while waits and nucleus.is_short is not None and bool(nucleus.is_short):
        nucleus = _find_nucleus(scores, limits, SORTED_GROWTH * nucleus.best.shape[-1])
    floor = nucleus.best.gather(-1, nucleus.num_kept - 1)
    warped = scores.masked_fill((scores < floor) & ~limits.is_unlimited, -torch.inf)
    return Warped(warped, nucleus.best.shape[-1], None if waits else nucleus.is_short)


def _is_limited(params: SamplingParams) -> bool:
    return not params.greedy and (params.top_k, params.top_p, params.min_p) != (0, 1.0, 0.0)


def _top_k(params: SamplingParams, unlimited: int) -> int:
    """Return a request's top_k, or the value `unlimited` if top_k is disabled."""
    return params.top_k if _is_limited(params) and params.top_k > 0 else unlimited


def _upload(scores: Tensor, params: Sequence[SamplingParams]) -> list[Tensor]:
    """Copy the sampling parameters to the device of `scores`, each as [batch, 1, 1].

    Returns:
        The temperatures, a mask of those below MIN_PLAIN_TEMPERATURE, and the values of
        `_SamplingLimits`.
    """
    vocab = scores.shape[-1]
    floats = np.array(
        [
            (
                clamp_divisor(p.temperature or 1.0),
                *((p.top_p, p.min_p) if _is_limited(p) else (1.0, 0.0)),
            )
            for p in params
        ],
        dtype=np.float32,
    ).T.copy()
    is_cold = np.array([(p.temperature or 1.0) < MIN_PLAIN_TEMPERATURE for p in params])
    top_k = [min(vocab, _top_k(p, vocab)) for p in params]
    is_unlimited = (floats[1] >= 1.0) & (floats[2] <= 0.0) & (np.array(top_k) >= vocab)
    columns, *rest = upload(scores.device, floats, is_cold, top_k, is_unlimited)
    cold, ks, unlimited = (tensor[:, None, None] for tensor in rest)
    divisors, top_p, min_p = columns[..., None, None]
    return [divisors, cold, ks, top_p, min_p, unlimited]


class _Nucleus(NamedTuple):
    """Each row's nucleus: the most likely tokens that pass top_k, top_p and min_p.

    Attributes:
        best: Highest scores, in descending order, [batch, rows, sorted tokens].
        num_kept: Number of scores in `best` that belong to the nucleus, [batch, rows, 1].
        is_short: Whether the nucleus of any row may contain more tokens than were sorted, bool [].
            None if the whole vocabulary was sorted.
    """

    best: Tensor
    num_kept: Tensor
    is_short: Tensor | None


def _find_nucleus(scores: Tensor, limits: _SamplingLimits, num_sorted: int) -> _Nucleus:
    """Find the tokens that pass top_k, top_p and min_p, applied in this order.

    These tokens form the nucleus, which includes all tokens that tie with its last one. The nucleus
    nearly always consists of a few tokens, so the function sorts only the most likely tokens.

    Args:
        scores: Scores [batch, rows, vocab].
        limits: Limits of each request.
        num_sorted: Number of most likely tokens to sort per row.
    """
    vocab = scores.shape[-1]
    num_sorted = min(vocab, num_sorted)
    best = scores.topk(num_sorted, dim=-1).values
    rank = torch.arange(num_sorted, device=scores.device)
    last = (limits.top_k - 1).clamp(max=num_sorted - 1).expand(-1, scores.shape[1], 1)
    kth = best.gather(-1, last)
    total = torch.where(
        limits.top_k < vocab,
        best.masked_fill(best < kth, -torch.inf).logsumexp(-1, True),
        scores.logsumexp(-1, True),
    )
    probs = (best - total).exp()
    stays = (
        (probs.cumsum(-1) - probs < limits.top_p)
        & (probs >= limits.min_p * probs[..., :1])
        & (rank < limits.top_k)
    )
    stays |= rank == 0
    num_kept = stays.sum(-1, keepdim=True)
    is_short = (
        ((num_kept == num_sorted) & ~limits.is_unlimited).any() if num_sorted < vocab else None
    )
    return _Nucleus(best, num_kept, is_short)
