"""From logits to the target distribution, and the draw.

One function makes the distribution (`target_scores`), in the order transformers uses: repetition penalty, temperature, top_k,
top_p, min_p. The draw is `argmax(scores + Gumbel noise)` (Gumbel-max), the noise keyed by (request seed, position in
the answer, stream) through an integer hash: all rows of all requests are drawn in one call, on any device alike, and a
token does not depend on the tree, the drafter or the batch it was verified in.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from paceline.sequence import Sequence
from paceline.tree import DraftTree, tree_shape

# Streams keep draws at one position independent of each other.
TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)

_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1


def target_scores(logits: Tensor, seqs: Seq[Sequence], trees: Seq[DraftTree]) -> Tensor:
    """Scores whose softmax is the target distribution at every node.

    Args:
        logits: [batch, 1 + width, vocab]; row 0 follows the root, row 1 + i follows node i; rows beyond a tree are padding.
        seqs, trees: batch sequences and the trees that were fed.
    Returns:
        float32 [batch, 1 + width, vocab], excluded tokens at -inf. Greedy sequences get penalties only.
    """
    scores = logits.float()
    params = [seq.params for seq in seqs]
    if any(p.repetition_penalty != 1.0 for p in params):
        scores = _penalise(scores, seqs, trees)
    if all(p.greedy for p in params):
        return scores

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=scores.device)[:, None, None]

    if any(p.temperature not in (0.0, 1.0) for p in params):
        scores = scores / column([p.temperature or 1.0 for p in params])
    vocab = scores.shape[-1]
    ks = [vocab if p.greedy or p.top_k == 0 else min(p.top_k, vocab) for p in params]
    if min(ks) < vocab:
        best = scores.topk(max(k for k in ks if k < vocab), dim=-1).values
        index = torch.tensor([min(k, best.shape[-1]) - 1 for k in ks], device=scores.device)
        kth = best.gather(-1, index[:, None, None].expand(-1, scores.shape[1], 1))
        full = column([float(k == vocab) for k in ks]).bool()
        scores = scores.masked_fill((scores < kth) & ~full, -torch.inf)
    if any(p.top_p < 1.0 for p in params if not p.greedy):
        scores = _keep_nucleus(scores, column([1.0 if p.greedy else p.top_p for p in params]))
    if any(p.min_p > 0.0 for p in params if not p.greedy):
        probs = scores.softmax(-1)
        floor = probs.amax(-1, keepdim=True) * column([0.0 if p.greedy else p.min_p for p in params])
        scores = scores.masked_fill(probs < floor, -torch.inf)
    return scores


def _keep_nucleus(scores: Tensor, top_p: Tensor) -> Tensor:
    ordered, order = scores.sort(dim=-1)
    drop = ordered.softmax(-1).cumsum(-1) <= 1.0 - top_p
    drop &= top_p < 1.0
    drop[..., -1] = False
    return scores.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), -torch.inf)


def _penalise(scores: Tensor, seqs: Seq[Sequence], trees: Seq[DraftTree]) -> Tensor:
    """Repetition penalty (Keskar et al. 2019) on the tokens of each node's true prefix."""
    seen = torch.zeros_like(scores, dtype=torch.bool)
    penalty = torch.ones(len(seqs), 1, 1)
    for row, (seq, tree) in enumerate(zip(seqs, trees, strict=True)):
        penalty[row] = seq.params.repetition_penalty
        if seq.params.repetition_penalty == 1.0:
            continue
        seen[row, :, torch.tensor(seq.token_ids, device=scores.device)] = True
        if tree.token_ids:
            nodes, ancestors = tree_shape(tuple(tree.parents))[1].nonzero()
            tokens = torch.tensor(tree.token_ids)[torch.from_numpy(ancestors)]
            seen[row, torch.from_numpy(nodes).to(scores.device) + 1, tokens.to(scores.device)] = True
    penalty = penalty.to(scores.device)
    penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
    return torch.where(seen, penalised, scores)


def draw(scores: Tensor, seqs: Seq[Sequence], trees: Seq[DraftTree], stream: int = TARGET) -> list[list[int]]:
    """The token chosen after the root and after every node, in one vectorised call.

    Args:
        scores: [batch, 1 + width, vocab] from `target_scores`.
    Returns:
        batch lists of 1 + width token ids (entries beyond a tree mean nothing).
    """
    sampled = [row for row, seq in enumerate(seqs) if not seq.params.greedy]
    if not sampled:
        return _to_lists(scores.argmax(-1))
    tokens = scores.argmax(-1)
    keys: list[tuple[int, int]] = []  # one row of noise per distinct (sequence, position)
    index = torch.zeros(len(sampled), scores.shape[1], dtype=torch.long)
    for place, row in enumerate(sampled):
        seq, tree = seqs[row], trees[row]
        first, start = len(keys), len(seq) - seq.prompt_length
        depth = tree_shape(tuple(tree.parents))[0]
        deepest = int(depth.max()) if len(tree) else 0
        keys.extend(noise_key(seq.params.seed, start + offset, stream) for offset in range(deepest + 1))
        index[place] = first
        if len(tree):
            index[place, 1 : 1 + len(tree)] += torch.from_numpy(depth)
    noise = gumbel(keys, scores.shape[-1], scores.device)[index.to(scores.device)]
    chosen = (scores[sampled] + noise).argmax(-1)
    tokens[sampled] = chosen
    return _to_lists(tokens)


def _to_lists(tokens: Tensor) -> list[list[int]]:
    lists: list[list[int]] = tokens.tolist()  # the one device synchronisation of a step
    return lists


def draw_one(weights: Tensor, seed: int, position: int, stream: int) -> int:
    """One token with chance proportional to `weights` [vocab]; position counts from the start of the answer."""
    noise = gumbel([noise_key(seed, position, stream)], weights.shape[-1], weights.device)[0]
    return int((weights.log() + noise).argmax())


def noise_key(seed: int, position: int, stream: int) -> tuple[int, int]:
    """Two 32-bit words that name one row of noise."""
    word = _splitmix(_splitmix(seed & _MASK64) ^ (position * 4 + stream))
    return word >> 32, word & _MASK32


def uniform(seed: int, position: int, stream: int, index: int = 0) -> float:
    """A uniform number in [0, 1), fixed by its arguments."""
    high, low = noise_key(seed, position, stream)
    return (_splitmix(((high << 32) | low) ^ (index + 1)) >> 11) * 2.0**-53


def gumbel(keys: Seq[tuple[int, int]], vocab: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise, float32 [len(keys), vocab]; equal keys give equal rows."""
    high, low = torch.tensor(keys, dtype=torch.int64, device=device)[:, :, None].unbind(1)
    bits = _mix(_mix(torch.arange(vocab, device=device) ^ high).add_(low).bitwise_and_(_MASK32))
    # -log(-log(1 - v)): v near 0 carries the large noise, and floats are finest there.
    fraction = bits.float().add_(0.5).mul_(2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return fraction.neg_().log1p_().neg_().log_().neg_()


def _mix(words: Tensor) -> Tensor:
    """A bijective 32-bit hash; both factors are below 2^31, so int64 products never overflow."""
    words = (words ^ (words >> 16)).mul_(0x21F0AAAD).bitwise_and_(_MASK32)
    words ^= words >> 15
    words.mul_(0x735A2D97).bitwise_and_(_MASK32)
    words ^= words >> 15
    return words


def _splitmix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)
