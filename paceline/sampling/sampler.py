"""From logits to the target distribution, and the draw.

One function makes the distribution (`target_scores`), in the order transformers uses: what depends
on the tokens before (`adjustments.py`), temperature, top_k, top_p, min_p. The draw is `argmax(log
target_probs + Gumbel noise)`, the noise keyed by (request seed, position in the answer, stream)
through an integer hash: all rows of all requests are drawn in one call, on any device alike, and a
token does not depend on the tree, the drafter or the batch it was verified in. Gumbel noise being
-log of exponential noise E, the draw is computed as `argmax(target_probs / E)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from paceline.core.not_numbers import marked_argmax
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import DraftTree, node_depths
from paceline.cpu.topk import most_likely
from paceline.sampling.logit_adjustments import adjusted, divisor

# Streams keep draws at one position independent of each other.
TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)

_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1
_COLD = 1e-3  # temperatures below which logits are shifted before they are divided
_SORTED = 128  # most likely tokens looked at first when truncating


def target_scores(
    logits: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree]
) -> Tensor:
    """Scores whose softmax is the target distribution at every node.

    Args:
        logits: [batch, 1 + width, vocab]; row 0 follows the root, row 1 + i follows node i; rows
            beyond a tree are padding.
        requests, trees: batch requests and the trees that were fed.
    Returns:
        float32 [batch, 1 + width, vocab], excluded tokens at -inf. Greedy sequences get what
        depends on tokens only.
    """
    return shaped(
        adjusted(logits.float(), requests, trees), [request.params for request in requests]
    )


def is_greedy(requests: Sequence[Request]) -> bool:
    """Whether what is said in sequences is the likeliest token, by logits as they are."""
    return all(request.params.greedy and not request.params.adjusts for request in requests)


def shaped(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Scores [batch, rows, vocab] at the temperature of each sequence, truncated to its top_k,
    top_p and min_p.
    """
    if all(p.greedy for p in params):
        return scores

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=scores.device)[:, None, None]

    if any(p.temperature not in (0.0, 1.0) for p in params):
        scores = _at_temperature(scores, [p.temperature or 1.0 for p in params])
    limits = [(0, 1.0, 0.0) if p.greedy else (p.top_k, p.top_p, p.min_p) for p in params]
    if any(limit != (0, 1.0, 0.0) for limit in limits):
        top_k, top_p, min_p = (list(one) for one in zip(*limits, strict=True))
        scores = _truncate(scores, top_k, column(top_p), column(min_p))
    return scores


def _at_temperature(scores: Tensor, temperatures: list[float]) -> Tensor:
    """Divide the rows of a batch; at tiny temperatures the best score of each row becomes 0, so
    that none overflows.
    """
    cold = torch.tensor([one < _COLD for one in temperatures], device=scores.device)[:, None, None]
    if min(temperatures) < _COLD:
        scores = torch.where(cold, scores - scores.amax(-1, keepdim=True), scores)
    return (
        scores
        / torch.tensor([divisor(one) for one in temperatures], device=scores.device)[:, None, None]
    )


def _truncate(scores: Tensor, top_k: list[int], top_p: Tensor, min_p: Tensor) -> Tensor:
    """Set the tokens outside top_k, then top_p, then min_p to -inf; tokens tied with the last one
    kept stay.

    The nucleus is nearly always among the few most likely tokens, so only those are sorted; the
    rest is sorted where it is not.
    """
    vocab = scores.shape[-1]
    ks = torch.tensor([k if 0 < k < vocab else vocab for k in top_k], device=scores.device)[
        :, None, None
    ]
    sorted_size = min(vocab, max([_SORTED, *(k for k in top_k if k < vocab)]))
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
        kept = (probs.cumsum(-1) - probs < top_p) & (probs >= min_p * probs[..., :1]) & (rank < ks)
        kept |= rank == 0
        count = kept.sum(-1, keepdim=True)
        unbounded = (top_p >= 1.0) & (min_p <= 0.0) & (ks >= vocab)
        if sorted_size == vocab or not bool(((count == sorted_size) & ~unbounded).any()):
            break
        sorted_size = min(vocab, 16 * sorted_size)
    floor = best.gather(-1, count - 1)
    return scores.masked_fill((scores < floor) & ~unbounded, -torch.inf)


def draw(
    scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree], stream: int = TARGET
) -> list[list[int]]:
    """The token chosen after the root and after every node, in one vectorised call.

    Args:
        scores: [batch, 1 + width, vocab] from `target_scores`.
    Returns:
        batch lists of 1 + width token ids (entries beyond a tree mean nothing); NO_TOKEN where
        scores are not numbers.
    """
    sampled = [row for row, request in enumerate(requests) if not request.params.greedy]
    if not sampled:
        return _to_lists(most_likely(scores))
    tokens = (
        most_likely(scores)
        if len(sampled) < len(requests)
        else scores.new_empty(scores.shape[:2], dtype=torch.long)
    )
    keys: list[tuple[int, int]] = []  # one row of noise per distinct (sequence, position)
    index = torch.zeros(len(sampled), scores.shape[1], dtype=torch.long)
    for place, row in enumerate(sampled):
        request, tree = requests[row], trees[row]
        first, start = len(keys), len(request) - request.prompt_length
        depth = node_depths(tree.parents)
        deepest = int(depth.max()) if len(tree) else 0
        keys.extend(
            noise_key(request.params.seed, start + offset, stream) for offset in range(deepest + 1)
        )
        index[place] = first
        if len(tree):
            index[place, 1 : 1 + len(tree)] += torch.tensor(depth)
    noise = exponential_noise(keys, scores.shape[-1], scores.device)[index.to(scores.device)]
    weights = (scores if len(sampled) == len(requests) else scores[sampled]).softmax(-1)
    tokens[sampled] = marked_argmax(weights.div_(noise))
    return _to_lists(tokens)


class Draws:
    """The tokens chosen after the root and after every node of one tree, each drawn when it is
    asked for, as `draw` says.

    A walk asks for as many as it emits. Where that costs no synchronisation, the others need not be
    drawn.

    Args:
        logits: [1 + width, vocab], of a sequence that changes them by nothing but temperature and
            truncation.
    """

    def __init__(self, logits: Tensor, request: Request, tree: DraftTree) -> None:
        self._logits, self._params = logits, request.params
        self._depths = (0, *node_depths(tree.parents).tolist())
        self._start = len(request) - request.prompt_length

    def __getitem__(self, place: int) -> int:
        """Draw the token after the root (0) or after node `place` - 1."""
        weights = shaped(self._logits[None, place : place + 1].float(), [self._params])[
            0, 0
        ].softmax(-1)
        return draw_one(weights, self._params.seed, self._start + self._depths[place], TARGET)


def _to_lists(tokens: Tensor) -> list[list[int]]:
    lists: list[list[int]] = tokens.tolist()  # the one device synchronisation of a step
    return lists


def draw_one(weights: Tensor, seed: int, position: int, stream: int) -> int:
    """One token with chance proportional to `weights` [vocab], NO_TOKEN where they are not numbers.

    Args:
        position: of the token, from the start of the answer.
    """
    noise = exponential_noise(
        [noise_key(seed, position, stream)], weights.shape[-1], weights.device
    )[0]
    return int(marked_argmax(weights / noise))


def noise_key(seed: int, position: int, stream: int) -> tuple[int, int]:
    """Two 32-bit words that name one row of noise."""
    word = _splitmix(_splitmix(seed & _MASK64) ^ (position * 4 + stream))
    return word >> 32, word & _MASK32


def uniform(seed: int, position: int, stream: int, index: int = 0) -> float:
    """A uniform number in [0, 1), fixed by its arguments."""
    high, low = noise_key(seed, position, stream)
    return (_splitmix(((high << 32) | low) ^ (index + 1)) >> 11) * 2.0**-53


def exponential_noise(keys: Sequence[tuple[int, int]], vocab: int, device: torch.device) -> Tensor:
    """Standard exponential noise, float32 [len(keys), vocab]; equal keys give equal rows."""
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
    """A fixed random word per token id, so that rows of different keys are no permutations of
    each other.
    """
    with torch.inference_mode(False):
        return _mix(torch.arange(1, vocab + 1, dtype=torch.int32, device=device))


def _mix(words: Tensor) -> Tensor:
    """A bijective 32-bit hash, in place; products wrap, and shifts are made logical by masks."""
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
