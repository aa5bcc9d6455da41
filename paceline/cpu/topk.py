"""The most likely tokens of rows of logits, and how sure they are, compiled: torch's own take
longer than all else in a step.

Of the likeliest ones the one with the lowest id comes first, as torch's `argmax` has it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.not_numbers import NO_TOKEN, marked_argmax
from paceline.core.tree import IntArray
from paceline.cpu import simd_f32x8
from paceline.cpu.attention.invariant import KINDS
from paceline.cpu.attention.tiles import FLOAT, FLOAT32, address, load_lanes, load_row
from paceline.util.compiled import compiled, inlined

_LEAST = -100.0  # a logit less the largest: its exponential is 0
_BLOCK = 64  # numbers whose largest is known by itself


def most_likely(logits: Tensor) -> Tensor:
    """Return the most likely token of each row, `logits.argmax(-1)`; NO_TOKEN where the row is not
    numbers.

    Args:
        logits: [..., vocab].
    """
    if not _readable(logits):
        return marked_argmax(logits)
    return torch.from_numpy(_search(logits, 1, False)[0]).reshape(logits.shape[:-1])


def likeliest(logits: Tensor, count: int) -> tuple[IntArray, NDArray[np.float32]]:
    """Return the `count` most likely tokens of each row, the likeliest first, and their
    probabilities, both [..., count].

    Where a row is not numbers, the tokens are any, and the probabilities are 0.

    Args:
        logits: [..., vocab].
    """
    count = min(count, logits.shape[-1])
    if _readable(logits):
        token_ids, probs = _search(logits, count, True)
        return token_ids.reshape(*logits.shape[:-1], count), probs.reshape(
            *logits.shape[:-1], count
        )
    found = _largest_first(logits, count)
    chances = (logits.gather(-1, found).float() - logits.float().logsumexp(-1, keepdim=True)).exp()
    return found.cpu().numpy(), torch.where(chances[..., :1].isfinite(), chances, 0.0).cpu().numpy()


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each row's distribution, float32 [...], in nats.

    Args:
        logits: [..., vocab], none of them NaN.
    """
    if not _readable(logits):
        logs = logits.float().log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)
        return (logs.exp() * logs).sum(-1).neg()
    logits = logits.contiguous()
    found = np.empty(logits.numel() // logits.shape[-1], dtype=np.float32)
    _measure(logits.data_ptr(), KINDS[logits.dtype], logits.shape[-1], found)
    return torch.from_numpy(found).reshape(logits.shape[:-1])


def _largest_first(logits: Tensor, count: int) -> Tensor:
    """Return what `topk` finds, behind what `argmax` does: of equals it takes any."""
    found = torch.cat((logits.argmax(-1, keepdim=True), logits.topk(count, dim=-1).indices), dim=-1)
    again = found == found[..., :1]
    again[..., 0] = False
    return found.gather(-1, again.byte().argsort(dim=-1, stable=True))[..., :count]


def _readable(logits: Tensor) -> bool:
    """Whether the compiled search can read them."""
    read = type(logits) is Tensor and logits.device.type == "cpu" and logits.dtype in KINDS
    return read and logits.shape[-1] % simd_f32x8.WIDTH == 0


def _search(logits: Tensor, count: int, with_probs: bool) -> tuple[IntArray, NDArray[np.float32]]:
    """Return tokens and probabilities [rows, count]; without probabilities, the largest numbers
    in their place.
    """
    logits = logits.contiguous()
    rows, vocab = logits.numel() // logits.shape[-1], logits.shape[-1]
    token_ids, probs = (
        np.empty((rows, count), dtype=np.int64),
        np.empty((rows, count), dtype=np.float32),
    )
    _find(logits.data_ptr(), KINDS[logits.dtype], vocab, token_ids, probs, with_probs)
    return token_ids, probs


@compiled
def _find(
    logits: int,
    kind: int,
    vocab: int,
    token_ids: IntArray,
    probs: NDArray[np.float32],
    with_probs: bool,
) -> None:
    """Fill `token_ids` and `probs`. A row that is not numbers gets NO_TOKEN, or with probabilities
    any tokens, of 0 each.

    Args:
        logits: address of [len(token_ids), vocab], stored as `kind` says.
    """
    count = token_ids.shape[1]
    size = FLOAT if kind == FLOAT32 else FLOAT // 2
    block = np.empty(_BLOCK, dtype=np.float32)
    largest = np.empty((vocab + _BLOCK - 1) // _BLOCK, dtype=np.float32)
    for row in range(len(token_ids)):
        place = logits + row * vocab * size
        fine = not np.isnan(_largest(kind, place, size, vocab, largest))
        if fine:
            _select(kind, place, size, vocab, largest, block, token_ids[row], probs[row])
            fine = np.isfinite(probs[row, 0])
        if not fine:
            for rank in range(count):
                token_ids[row, rank], probs[row, rank] = rank if with_probs else NO_TOKEN, 0.0
            continue
        if with_probs:
            best = probs[row, 0]
            total = _total(kind, place, size, vocab, best)
            for rank in range(count):
                probs[row, rank] = np.exp(probs[row, rank] - best) / total


@inlined
def _largest(
    kind: int, row: int, size: int, vocab: int, largest: NDArray[np.float32]
) -> np.float32:
    """Fill in the largest number of each block; return the largest of all, NaN if one of them
    is.
    """
    every = simd_f32x8.splat(np.float32(-np.inf))
    for block in range(len(largest)):
        first = block * _BLOCK
        best = simd_f32x8.splat(np.float32(-np.inf))
        for place in range(first, min(first + _BLOCK, vocab), simd_f32x8.WIDTH):
            some = load_lanes(kind, row + place * size)
            best = simd_f32x8.larger(best, some)
            every = simd_f32x8.marked(every, some)
        largest[block] = simd_f32x8.largest(best)
    found: np.float32 = simd_f32x8.total(every)
    return found


@inlined
def _select(
    kind: int,
    row: int,
    size: int,
    vocab: int,
    largest: NDArray[np.float32],
    block: NDArray[np.float32],
    token_ids: IntArray,
    best: NDArray[np.float32],
) -> None:
    """Fill in the places and values of the largest numbers, the largest first."""
    known, count = 0, len(best)
    for number in range(len(largest)):
        if known == count and not largest[number] > best[count - 1]:
            continue
        first = number * _BLOCK
        length = min(_BLOCK, vocab - first)
        load_row(kind, row + first * size, address(block), length)
        for place in range(length):
            value = block[place]
            if known == count and not value > best[count - 1]:
                continue
            known += known < count
            rank = known - 1
            while rank > 0 and value > best[rank - 1]:
                best[rank], token_ids[rank] = best[rank - 1], token_ids[rank - 1]
                rank -= 1
            best[rank], token_ids[rank] = value, first + place


@inlined
def _total(kind: int, row: int, size: int, vocab: int, best: np.float32) -> np.float32:
    """The sum of the exponentials of all numbers less the largest."""
    total, shift = simd_f32x8.splat(np.float32(0.0)), simd_f32x8.splat(best)
    for place in range(0, vocab, simd_f32x8.WIDTH):
        total = simd_f32x8.add(
            total, simd_f32x8.exp(simd_f32x8.subtract(load_lanes(kind, row + place * size), shift))
        )
    found: np.float32 = simd_f32x8.total(total)
    return found


@compiled
def _measure(logits: int, kind: int, vocab: int, found: NDArray[np.float32]) -> None:
    """Fill in the entropies: of what is so unlikely that its exponential is 0, nothing is added."""
    size = FLOAT if kind == FLOAT32 else FLOAT // 2
    for row in range(len(found)):
        first = logits + row * vocab * size
        best = simd_f32x8.splat(np.float32(-np.inf))
        for place in range(0, vocab, simd_f32x8.WIDTH):
            best = simd_f32x8.larger(best, load_lanes(kind, first + place * size))
        shift, least = (
            simd_f32x8.splat(simd_f32x8.largest(best)),
            simd_f32x8.splat(np.float32(_LEAST)),
        )
        total, weighted = simd_f32x8.splat(np.float32(0.0)), simd_f32x8.splat(np.float32(0.0))
        for place in range(0, vocab, simd_f32x8.WIDTH):
            behind = simd_f32x8.larger(
                simd_f32x8.subtract(load_lanes(kind, first + place * size), shift), least
            )
            some = simd_f32x8.exp(behind)
            total, weighted = simd_f32x8.add(total, some), simd_f32x8.fused(some, behind, weighted)
        whole = simd_f32x8.total(total)
        found[row] = np.log(whole) - simd_f32x8.total(weighted) / whole
