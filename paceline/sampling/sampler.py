"""Compute the target distribution from logits, and sample from it.

`target_scores` applies the adjustments in `logit_adjustments`, followed by temperature, top_k,
top_p and min_p. The order is the same as in transformers.

`draw` samples with the Gumbel-max trick: it returns `argmax(log target_probs + noise)`. An integer
hash computes the noise of each token id from the request's seed, the position in the answer, and
the noise stream (such as TARGET or DRAFT). One call can therefore draw the tokens of all requests,
with the same result on any device. A drawn token does not depend on the tree, the drafter or the
batch.

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

# With different noise streams, draws at the same position are independent of each other.
TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)

_MASK64, _MASK32 = (int(np.iinfo(kind).max) for kind in (np.uint64, np.uint32))


def target_scores(
    logits: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree]
) -> Tensor:
    """Return scores whose softmax is the target distribution after each node.

    Args:
        logits: Logits [batch, 1 + width, vocab]. For each request, row 0 contains the logits after
            the root, and row 1 + i the logits after node i. Rows beyond the tree are padding.
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
    """Return whether every request selects the highest logit, without adjustments."""
    return all(request.params.greedy and not request.params.adjusts for request in requests)


class Drawn(NamedTuple):
    """Sampled tokens, and other tensors that were copied from the device with them.

    Attributes:
        scores: Scores as returned by `target_scores`, [batch, 1 + width, vocab], on the device.
        tokens: Token ids, [batch][1 + width]. Entries beyond a tree have no meaning. An entry is
            NO_TOKEN if the scores are NaN or infinite.
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
    """Sample the token after the root and every node, and copy the tokens to the host.

    To apply top_k, top_p and min_p, the function first sorts only the most likely tokens. If these
    tokens may not suffice, the function sorts more tokens and samples again. Each attempt waits
    for the device once.

    Args:
        logits: Logits [batch, 1 + width, vocab], as in `target_scores`.
        requests: Requests of the batch.
        trees: Draft tree of each request.
        stream: Noise stream, such as TARGET or DRAFT.
        others: Function that returns additional tensors to copy from the device. Its arguments are
            the scores and the tokens.
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

    Args:
        scores: Scores [batch, 1 + width, vocab] from `target_scores`.
        requests: Requests of the batch.
        trees: Draft tree of each request.
        stream: Noise stream, such as TARGET or DRAFT.
    Returns:
        Token ids [batch, 1 + width] on the device of the scores. Entries beyond a tree have no
        meaning. An entry is NO_TOKEN if the scores are NaN or infinite.
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
    """Samples the token after the root or a node when verification asks for the token.

    Each token equals the one that `draw` returns. Verification needs only the tokens that become
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
    """Sample a token with probabilities proportional to `weights`.

    Args:
        weights: Weight of each token, [vocab], at least 0.
        seed: Seed of the request.
        position: Position of the token in the answer, starting from 0.
        stream: Noise stream, such as TARGET or DRAFT.
    Returns:
        The token id, or NO_TOKEN if the weights are NaN or infinite.
    """
    return int(draw_row(weights, seed, position, stream))


def draw_row(weights: Tensor, seed: int, position: int, stream: int) -> Tensor:
    """Sample a token like `draw_one`, but return a scalar int64 tensor on the device."""
    noise = exponential_noise(
        [noise_key(seed, position, stream)], weights.shape[-1], weights.device
    )[0]
    return marked_argmax(weights / noise)


def noise_key(seed: int, position: int, stream: int) -> tuple[int, int]:
    """Hash a seed, position and stream to two 32-bit words, the key of a noise row."""
    word = _splitmix(_splitmix(seed & _MASK64) ^ (position * 4 + stream))
    return word >> 32, word & _MASK32


def uniform(seed: int, position: int, stream: int, index: int = 0) -> float:
    """Return a uniform random number in [0, 1), determined by the arguments alone."""
    high, low = noise_key(seed, position, stream)
    return (_splitmix(((high << 32) | low) ^ (index + 1)) >> 11) * 2.0**-53


def step_seed(seed: int, position: int) -> int:
    """Return the seed for the draft tokens of one step.

    Every step needs a new seed. The acceptance of a draft token may depend on later draft tokens.
    If a step reused the noise of rejected draft tokens, the output would therefore not follow the
    target's distribution.

    Args:
        seed: Seed of the request.
        position: Position of the step's first token in the answer.
    """
    high, low = noise_key(seed, position, DRAFT)
    return (high << 31) | (low >> 1)


def exponential_noise(keys: Sequence[tuple[int, int]], vocab: int, device: torch.device) -> Tensor:
    """Return exponential noise, float32 [len(keys), vocab], with one row per key.

    Equal keys produce equal rows.
    """
    return noise_from(upload(device, words_of(keys))[0], vocab)


def words_of(keys: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Convert noise keys to an array of 32-bit words [n, 2] for `noise_from`."""
    return np.array(keys, dtype=np.uint32).view(np.int32)


def noise_from(words: Tensor, vocab: int) -> Tensor:
    """Compute exponential noise, float32 [n, vocab], on the device of the keys.

    `words` contains the keys as 32-bit words [n, 2], from `words_of`.
    """
    high, low = words[:, :, None].unbind(1)
    bits = _mix((_token_words(vocab, words.device) ^ high).add_(low)).bitwise_and_(0x7FFFFFFF)
    # E = -log(1 - v). The smallest E decide the draw. They come from small v, where floats have the
    # highest resolution.
    fraction = bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    return fraction.neg_().log1p_().neg_()


@lru_cache(maxsize=8)
def _token_words(vocab: int, device: torch.device) -> Tensor:
    """Return a fixed pseudorandom word for each token id, int32 [vocab].

    Without these words, the noise rows of different keys would be permutations of each other.
    """
    with torch.inference_mode(False):
        return _mix(torch.arange(1, vocab + 1, dtype=torch.int32, device=device))


def _mix(words: Tensor) -> Tensor:
    """Apply a bijective hash to 32-bit words, in place.

    The products wrap around on overflow. The masks turn arithmetic shifts into logical shifts.
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
