"""Compute the target distribution from logits, and sample from it.

`target_scores` applies, in transformers' order: adjustments by earlier tokens
(`logit_adjustments`), temperature, top_k, top_p, min_p. Tokens are drawn with the Gumbel-max trick:
`argmax(log target_probs + noise)`. An integer hash of (request seed, position in the answer,
stream) keys the noise. So one call draws all rows of all requests, alike on any device, and a token
does not depend on the tree, the drafter or the batch. Gumbel noise is -log of exponential noise E,
so the draw is computed as `argmax(target_probs / E)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from paceline.backend.resolve import argmax_tokens
from paceline.core.not_numbers import marked_argmax
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree, node_depths
from paceline.sampling.logit_adjustments import adjust_scores, clamp_divisor
from paceline.sampling.settings import MIN_PLAIN_TEMPERATURE, SORTED_TOKENS

# Streams keep draws at the same position independent of each other.
TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)

_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1


def target_scores(
    logits: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree]
) -> Tensor:
    """Return scores whose softmax is the target distribution at every node.

    Args:
        logits: Logits [batch, 1 + width, vocab]. Row 0 follows the root, row 1 + i follows node i;
            rows beyond a tree are padding.
        requests: Requests of the batch.
        trees: Draft trees that were verified with them.
    Returns:
        Scores, float32 [batch, 1 + width, vocab], with excluded tokens at -inf. Scores of greedy
        requests are adjusted, but not warped.
    """
    return warp_scores(
        adjust_scores(logits.float(), requests, trees), [request.params for request in requests]
    )


def is_greedy(requests: Sequence[Request]) -> bool:
    """Return whether every request takes the most likely token of unchanged logits."""
    return all(request.params.greedy and not request.params.adjusts for request in requests)


def warp_scores(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply temperature, top_k, top_p and min_p to the scores of each request.

    Args:
        scores: Scores [batch, rows, vocab].
        params: Sampling parameters of each request. Scores of greedy requests stay as they are.
    """
    if all(p.greedy for p in params):
        return scores

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=scores.device)[:, None, None]

    if any(p.temperature not in (0.0, 1.0) for p in params):
        scores = _at_temperature(scores, [p.temperature or 1.0 for p in params])
    limits = [(0, 1.0, 0.0) if p.greedy else (p.top_k, p.top_p, p.min_p) for p in params]
    if any(limit != (0, 1.0, 0.0) for limit in limits):
        top_k, top_p, min_p = (list(values) for values in zip(*limits, strict=True))
        scores = _truncate(scores, top_k, column(top_p), column(min_p))
    return scores


def _at_temperature(scores: Tensor, temperatures: list[float]) -> Tensor:
    """Divide the scores of each request by its temperature.

    At tiny temperatures the best score of each row becomes 0, so that none overflows.
    """
    cold = [temperature < MIN_PLAIN_TEMPERATURE for temperature in temperatures]
    is_cold = torch.tensor(cold, device=scores.device)[:, None, None]
    if min(temperatures) < MIN_PLAIN_TEMPERATURE:
        scores = torch.where(is_cold, scores - scores.amax(-1, keepdim=True), scores)
    divisors = [clamp_divisor(temperature) for temperature in temperatures]
    return scores / torch.tensor(divisors, device=scores.device)[:, None, None]


def _truncate(scores: Tensor, top_k: list[int], top_p: Tensor, min_p: Tensor) -> Tensor:
    """Set the tokens outside top_k, then top_p, then min_p to -inf.

    Tokens with the same score as the last one inside stay.
    """
    # The nucleus is nearly always among the few most likely tokens, so only these are sorted. The
    # loop sorts more tokens if it is not.
    vocab = scores.shape[-1]
    ks = torch.tensor([k if 0 < k < vocab else vocab for k in top_k], device=scores.device)[
        :, None, None
    ]
    sorted_size = min(vocab, max([SORTED_TOKENS, *(k for k in top_k if k < vocab)]))
    while True:
        best = scores.topk(sorted_size, dim=-1).values
        rank = torch.arange(sorted_size, device=scores.device)
        kth = best.gather(-1, (ks - 1).clamp(max=sorted_size - 1).expand(-1, scores.shape[1], 1))
        total = torch.where(
            ks < vocab,
            best.masked_fill(best < kth, -torch.inf).logsumexp(-1, True),
            scores.logsumexp(-1, True),
        )
        probs = (best - total).exp()
        stays = (probs.cumsum(-1) - probs < top_p) & (probs >= min_p * probs[..., :1]) & (rank < ks)
        stays |= rank == 0
        count = stays.sum(-1, keepdim=True)
        unbounded = (top_p >= 1.0) & (min_p <= 0.0) & (ks >= vocab)
        if sorted_size == vocab or not bool(((count == sorted_size) & ~unbounded).any()):
            break
        sorted_size = min(vocab, 16 * sorted_size)
    floor = best.gather(-1, count - 1)
    return scores.masked_fill((scores < floor) & ~unbounded, -torch.inf)


def draw(
    scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree], stream: int = TARGET
) -> list[list[int]]:
    """Sample the token after the root and after every node, in one vectorised call.

    Args:
        scores: Scores [batch, 1 + width, vocab] from `target_scores`.
        requests: Requests of the batch.
        trees: Draft trees of the requests.
        stream: Stream of the noise.
    Returns:
        Token ids, batch lists of 1 + width; entries beyond a tree mean nothing. NO_TOKEN stands for
        scores that are not numbers.
    """
    sampled = [row for row, request in enumerate(requests) if not request.params.greedy]
    if not sampled:
        return _to_lists(argmax_tokens(scores))
    tokens = (
        argmax_tokens(scores)
        if len(sampled) < len(requests)
        else scores.new_empty(scores.shape[:2], dtype=torch.long)
    )
    keys: list[tuple[int, int]] = []  # one row of noise per distinct (request, position)
    index = torch.zeros(len(sampled), scores.shape[1], dtype=torch.long)
    for sample, row in enumerate(sampled):
        request, tree = requests[row], trees[row]
        first, start = len(keys), len(request) - request.prompt_length
        depth = node_depths(tree.parents)
        deepest = int(depth.max()) if len(tree) else 0
        keys.extend(
            noise_key(request.params.seed, start + offset, stream) for offset in range(deepest + 1)
        )
        index[sample] = first
        if len(tree):
            index[sample, 1 : 1 + len(tree)] += torch.tensor(depth)
    noise = exponential_noise(keys, scores.shape[-1], scores.device)[index.to(scores.device)]
    weights = (scores if len(sampled) == len(requests) else scores[sampled]).softmax(-1)
    tokens[sampled] = marked_argmax(weights.div_(noise))
    return _to_lists(tokens)


class LazyDraws:
    """Tokens after the root and every node of a tree, each drawn on access.

    The tokens are those of `draw`. Verification reads only the tokens that it emits, so the others
    need not be drawn.

    Args:
        logits: Logits [1 + width, vocab] of a request that only warps them.
        request: Request that the tokens are for.
        tree: Draft tree of the request.
    """

    def __init__(self, logits: Tensor, request: Request, tree: DraftTree) -> None:
        self._logits, self._params = logits, request.params
        self._depths = (0, *node_depths(tree.parents).tolist())
        self._start = len(request) - request.prompt_length

    def __getitem__(self, row: int) -> int:
        """Draw the token after the root (row 0) or after node `row` - 1."""
        weights = warp_scores(self._logits[None, row : row + 1].float(), [self._params])[
            0, 0
        ].softmax(-1)
        return draw_one(weights, self._params.seed, self._start + self._depths[row], TARGET)


def _to_lists(tokens: Tensor) -> list[list[int]]:
    lists: list[list[int]] = tokens.tolist()  # the one device synchronisation of a step
    return lists


def draw_one(weights: Tensor, seed: int, position: int, stream: int) -> int:
    """Sample a token with probability proportional to `weights`.

    Args:
        weights: Weights [vocab].
        seed: Seed of the request.
        position: Position of the token in the answer, from 0.
        stream: Stream of the noise.
    Returns:
        The token id; NO_TOKEN if the weights are not numbers.
    """
    noise = exponential_noise(
        [noise_key(seed, position, stream)], weights.shape[-1], weights.device
    )[0]
    return int(marked_argmax(weights / noise))


def noise_key(seed: int, position: int, stream: int) -> tuple[int, int]:
    """Return two 32-bit words that select one row of noise."""
    word = _splitmix(_splitmix(seed & _MASK64) ^ (position * 4 + stream))
    return word >> 32, word & _MASK32


def uniform(seed: int, position: int, stream: int, index: int = 0) -> float:
    """Return a uniform number in [0, 1) that depends on the arguments alone."""
    high, low = noise_key(seed, position, stream)
    return (_splitmix(((high << 32) | low) ^ (index + 1)) >> 11) * 2.0**-53


def exponential_noise(keys: Sequence[tuple[int, int]], vocab: int, device: torch.device) -> Tensor:
    """Return exponential noise, float32 [len(keys), vocab], one row per key.

    Equal keys give equal rows.
    """
    words = torch.tensor(
        [[_signed(word) for word in key] for key in keys], dtype=torch.int32, device=device
    )
    high, low = words[:, :, None].unbind(1)
    bits = _mix((_token_words(vocab, device) ^ high).add_(low)).bitwise_and_(0x7FFFFFFF)
    # E = -log(1 - v): small v give the small E that win, and floats are finest there.
    fraction = bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    return fraction.neg_().log1p_().neg_()


@lru_cache(maxsize=8)
def _token_words(vocab: int, device: torch.device) -> Tensor:
    """Return a fixed random word per token id.

    Without it, rows of different keys would be permutations of each other.
    """
    with torch.inference_mode(False):
        return _mix(torch.arange(1, vocab + 1, dtype=torch.int32, device=device))


def _mix(words: Tensor) -> Tensor:
    """Apply a bijective 32-bit hash in place.

    Products wrap around; masks make the shifts logical.
    """
    words ^= (words >> 16).bitwise_and_(0xFFFF)
    words *= 0x21F0AAAD
    words ^= (words >> 15).bitwise_and_(0x1FFFF)
    words *= 0x735A2D97
    words ^= (words >> 15).bitwise_and_(0x1FFFF)
    return words


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _splitmix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)
