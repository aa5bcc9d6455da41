"""Apply temperature, top_k, top_p and min_p to scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.sampling_params import SamplingParams
from paceline.sampling.adjustment_places import clamp_divisor
from paceline.sampling.settings import (
    DEVICE_SORTED_TOKENS,
    MIN_PLAIN_TEMPERATURE,
    SORTED_GROWTH,
    SORTED_TOKENS,
)
from paceline.util.device_copies import upload


class Warped(NamedTuple):
    """Hold warped scores, which may rest on too few sorted tokens.

    Attributes:
        scores: The scores, with excluded tokens at -inf.
        num_sorted: Number of most likely tokens that were sorted.
        is_short: bool [] on the device: whether a nucleus may have more tokens, so that the scores
            are wrong. None = it has not.
    """

    scores: Tensor
    num_sorted: int = 0
    is_short: Tensor | None = None


class _Limits(NamedTuple):
    """Hold the limits of each request, [batch, 1, 1] each.

    Attributes:
        top_k: Number of tokens; the whole vocabulary if it is not limited.
        top_p: Probability of the nucleus.
        min_p: Probability relative to the most likely token.
        is_unlimited: Whether all tokens stay.
    """

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    is_unlimited: Tensor


def warp_scores(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply temperature, top_k, top_p and min_p to the scores of each request.

    Args:
        scores: Scores [batch, rows, vocab].
        params: Sampling parameters of each request. Scores of greedy requests stay as they are.
    """
    warped = try_warp(scores, params)
    while warped.is_short is not None and bool(warped.is_short):
        warped = try_warp(scores, params, warped.num_sorted)
    return warped.scores


def try_warp(scores: Tensor, params: Sequence[SamplingParams], too_few: int = 0) -> Warped:
    """Run `warp_scores` without waiting for a device other than the CPU.

    Args:
        scores: As in `warp_scores`.
        params: As in `warp_scores`.
        too_few: Number of sorted tokens that was too small; 0 = not tried yet.
    """
    limited = [not p.greedy and (p.top_k, p.top_p, p.min_p) != (0, 1.0, 0.0) for p in params]
    heated = any(p.temperature not in (0.0, 1.0) for p in params)
    if all(p.greedy for p in params) or not (heated or any(limited)):
        return Warped(scores)
    vocab = scores.shape[-1]
    columns = np.array(
        [
            (
                clamp_divisor(p.temperature or 1.0),
                p.top_p if limit else 1.0,
                p.min_p if limit else 0.0,
            )
            for p, limit in zip(params, limited, strict=True)
        ],
        dtype=np.float32,
    ).T.copy()
    top_k = np.array(
        [
            p.top_k if limit and 0 < p.top_k < vocab else vocab
            for p, limit in zip(params, limited, strict=True)
        ],
        dtype=np.int64,
    )
    is_cold = np.array([(p.temperature or 1.0) < MIN_PLAIN_TEMPERATURE for p in params])
    floats, ks, cold = (
        tensor[..., None, None] for tensor in upload(scores.device, columns, top_k, is_cold)
    )
    if heated:
        if is_cold.any():
            # At tiny temperatures the best score becomes 0, so that none overflows.
            scores = torch.where(cold, scores - scores.amax(-1, keepdim=True), scores)
        scores = scores / floats[0]
    if not any(limited):
        return Warped(scores)
    is_unlimited = (floats[1] >= 1.0) & (floats[2] <= 0.0) & (ks >= vocab)
    limits = _Limits(ks, floats[1], floats[2], is_unlimited)
    most = max([0, *(k for k in top_k.tolist() if k < vocab)])
    if scores.device.type != "cpu":
        num_sorted = SORTED_GROWTH * too_few or max(DEVICE_SORTED_TOKENS, most + 1)
        return _truncate(scores, limits, num_sorted)
    warped = _truncate(scores, limits, max(SORTED_TOKENS, most))
    while warped.is_short is not None and bool(warped.is_short):
        warped = _truncate(scores, limits, SORTED_GROWTH * warped.num_sorted)
    return Warped(warped.scores)


def _truncate(scores: Tensor, limits: _Limits, num_sorted: int) -> Warped:
    """Set the tokens outside top_k, then top_p, then min_p to -inf.

    Tokens with the same score as the last one inside stay. The nucleus is nearly always among the
    few most likely tokens, so only these are sorted.
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
    count = stays.sum(-1, keepdim=True)
    is_short = None
    if num_sorted < vocab:
        is_short = ((count == num_sorted) & ~limits.is_unlimited).any()
    floor = best.gather(-1, count - 1)
    excluded = (scores < floor) & ~limits.is_unlimited
    return Warped(scores.masked_fill(excluded, -torch.inf), num_sorted, is_short)
