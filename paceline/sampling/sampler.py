"""Compute the target distribution from logits, and sample from it.

`target_scores` applies adjustments that depend on earlier tokens (`logit_adjustments`),
temperature, top_k, top_p and min_p, in transformers' order.

`draw` samples with the Gumbel-max trick: it returns `argmax(log target_probs + noise)`. An integer
hash yields the noise of each token id from the request's seed, the position in the answer, and the
stream (such as TARGET or DRAFT). A single call can therefore draw the tokens of all requests, with
the same result on any device. A drawn token does not depend on the tree, the drafter or the batch.

Gumbel noise is -log E, where E is exponential noise. `draw` therefore computes the equivalent
`argmax(target_probs / E)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.resolve import argmax_tokens
from paceline.core.not_numbers import marked_argmax
from paceline.core.request import Request
from paceline.core.tree import DraftTree, node_depths
from paceline.sampling.logit_adjustments import adjust_scores
from paceline.sampling.warping import try_warp, warp_scores
from paceline.util.device_copies import Arrays, fetch, upload

# Streams keep draws at the same position independent of each other.
TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)

_MASK64, _MASK32 = (int(np.iinfo(kind).max) for kind in (np.uint64, np.uint32))


def target_scores(
    logits: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree]
) -> Tensor:
    """Return scores whose softmax is the target distribution after each node.

    Args:
        logits: Logits [batch, 1 + width, vocab]. For each request, row 0 holds the logits after
            the root, and row 1 + i the logits after node i; rows beyond the tree are padding.
        requests: Requests of the batch.
        trees: Draft tree of each request.
    Returns:
        Scores, float32 [batch, 1 + width, vocab], with excluded tokens at -inf. Scores of greedy
        requests include the adjustments, but not temperature, top_k, top_p and min_p.
    """
    return warp_scores(
        adjust_scores(logits.float(), requests, trees), [request.params for request in requests]
    )


def is_greedy(requests: Sequence[Request]) -> bool:
    """Return whether every request takes the most likely token of unmodified logits."""
    return all(request.params.greedy and not request.params.adjusts for request in requests)


class Drawn(NamedTuple):
    """Drawn tokens, and other tensors copied from the device together with them.

    Attributes:
        scores: Scores from `target_scores`, [batch, 1 + width, vocab].
        tokens: Token ids, [batch][1 + width]; entries beyond a tree have no meaning. NO_TOKEN
            marks NaN or infinite scores.
        others: Copies of the tensors that the argument `others` of `draw_tokens` returned.
    """

    scores: Tensor
    tokens: list[list[int]]
    others: Arrays


def draw_tokens(
    logits: Tensor,
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    stream: int = TARGET,
    others: Callable[[Tensor, Tensor], Sequence[Tensor]] = lambda scores, tokens: (),
) -> Drawn:
    """Sample the token after the root and every node, with one wait for the device.

    At first, the function sorts only part of the vocabulary. If top_k, top_p or min_p requires more
    sorted tokens, the function samples again, and waits a second time.

    Args:
        logits: Logits, as in `target_scores`.
        requests: Requests of the batch.
        trees: Draft trees of the requests.
        stream: Number of the noise stream, such as TARGET or DRAFT.
        others: Function that returns other tensors to copy from the device, given the scores and
            the tokens.
    """
    adjusted = adjust_scores(logits.float(), requests, trees)
    params = [request.params for request in requests]
    warped = try_warp(adjusted, params)
    while True:
        tokens = draw(warped.scores, requests, trees, stream)
        flag = () if warped.is_short is None else (warped.is_short,)
        drawn, *copied = fetch(tokens, *others(warped.scores, tokens), *flag)
        if not flag or not copied.pop():
            return Drawn(warped.scores, drawn.tolist(), copied)
        warped = try_warp(adjusted, params, warped.num_sorted)


def draw(
    scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree], stream: int = TARGET
) -> Tensor:
    """Sample the token after the root and every node from `target_scores`.

    Returns:
        Token ids [batch, 1 + width] on the device of the scores; entries beyond a tree have no
        meaning. NO_TOKEN marks NaN or infinite scores.
    """
    sampled = [row for row, request in enumerate(requests) if not request.params.greedy]
    if not sampled:
        return argmax_tokens(scores)
    keys: list[tuple[int, int]] = []  # one row of noise per distinct (request, position)
    index = np.zeros((len(sampled), scores.shape[1]), dtype=np.int64)
    for sample, row in enumerate(sampled):
        request, tree = requests[row], trees[row]
        first, start = len(keys), len(request) - request.prompt_length
        depth = node_depths(tree.parents)
        deepest = int(depth.max()) if len(tree) else 0
        keys.extend(
            noise_key(request.params.seed, start + offset, stream) for offset in range(deepest + 1)
        )
        index[sample] = first
        index[sample, 1 : 1 + len(tree)] += depth
    rows, which, words = upload(scores.device, sampled, index, words_of(keys))
    noise = noise_from(words, scores.shape[-1])[which]
    if len(sampled) == len(requests):
        return marked_argmax(scores.softmax(-1).div_(noise))
    drawn = marked_argmax(scores[rows].softmax(-1).div_(noise))
    return argmax_tokens(scores).index_copy(0, rows, drawn)


class LazyDraws:
    """The tokens after the root and after every node, each drawn when it is read.

    Each token equals the one that `draw` returns. Verification reads only the tokens that become
    part of the answer, so drawing all tokens would waste time.

    Args:
        logits: Logits [1 + width, vocab] of a request without adjustments or processors.
        request: Request for which the tokens are drawn.
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


def draw_one(weights: Tensor, seed: int, position: int, stream: int) -> int:
    """Sample a token with probability proportional to `weights`, [vocab].

    `position` is the position of the token in the answer, starting from 0. If the weights are NaN
    or infinite, the result is NO_TOKEN.
    """
    return int(draw_row(weights, seed, position, stream))


def draw_row(weights: Tensor, seed: int, position: int, stream: int) -> Tensor:
    """Return the token from `draw_one` as a tensor on the device, int64 []."""
    noise = exponential_noise(
        [noise_key(seed, position, stream)], weights.shape[-1], weights.device
    )[0]
    return marked_argmax(weights / noise)


def noise_key(seed: int, position: int, stream: int) -> tuple[int, int]:
    """Return the key of a row of noise, as two 32-bit words."""
    word = _splitmix(_splitmix(seed & _MASK64) ^ (position * 4 + stream))
    return word >> 32, word & _MASK32


def uniform(seed: int, position: int, stream: int, index: int = 0) -> float:
    """Return a uniform random number in [0, 1) that depends only on the arguments."""
    high, low = noise_key(seed, position, stream)
    return (_splitmix(((high << 32) | low) ^ (index + 1)) >> 11) * 2.0**-53


def step_seed(seed: int, position: int) -> int:
    """Return the seed for the draft tokens of one step.

    Every step needs a new seed. The acceptance of a draft token may depend on the draft tokens
    after this token. If a later step drafted with the noise of a rejected draft, the output would
    therefore not follow the target's distribution.

    Args:
        seed: Seed of the request.
        position: Position of the step's first token in the answer.
    """
    high, low = noise_key(seed, position, DRAFT)
    return (high << 31) | (low >> 1)


def exponential_noise(keys: Sequence[tuple[int, int]], vocab: int, device: torch.device) -> Tensor:
    """Return exponential noise, float32 [len(keys), vocab], one row per key.

    Rows with equal keys are equal.
    """
    return noise_from(upload(device, words_of(keys))[0], vocab)


def words_of(keys: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Return noise keys as 32-bit words [n, 2], the form that `noise_from` takes."""
    return np.array(keys, dtype=np.uint32).view(np.int32)


def noise_from(words: Tensor, vocab: int) -> Tensor:
    """Return `exponential_noise` for keys given as words [n, 2] on the device."""
    high, low = words[:, :, None].unbind(1)
    bits = _mix((_token_words(vocab, words.device) ^ high).add_(low)).bitwise_and_(0x7FFFFFFF)
    # E = -log(1 - v): small v give the small E that win, and floats are finest there.
    fraction = bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    return fraction.neg_().log1p_().neg_()


@lru_cache(maxsize=8)
def _token_words(vocab: int, device: torch.device) -> Tensor:
    """Return a fixed random word per token id.

    Without these words, rows with different keys would be permutations of each other.
    """
    with torch.inference_mode(False):
        return _mix(torch.arange(1, vocab + 1, dtype=torch.int32, device=device))


def _mix(words: Tensor) -> Tensor:
    """Apply a bijective 32-bit hash in place.

    Products overflow by wrapping around. Masks turn arithmetic shifts into logical shifts.
    """
    words ^= (words >> 16).bitwise_and_(0xFFFF)
    words *= 0x21F0AAAD
    words ^= (words >> 15).bitwise_and_(0x1FFFF)
    words *= 0x735A2D97
    words ^= (words >> 15).bitwise_and_(0x1FFFF)
    return words


def _splitmix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)
