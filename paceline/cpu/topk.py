"""Find each row's top-k tokens and their probabilities, and compute entropies.

On CPUs, torch's functions for these tasks take longer than all other work in a small step. Among
equal logits, the lowest token id comes first, as in torch's `argmax`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.torch_backend import TORCH
from paceline.core.not_numbers import NO_TOKEN
from paceline.core.tree import IntArray
from paceline.cpu import simd_f32x8
from paceline.cpu.memory import (
    FLOAT32,
    FLOAT_BYTES,
    HALF_BYTES,
    KINDS,
    address,
    load_lanes,
    load_row,
)
from paceline.cpu.settings import TOP_K_BLOCK
from paceline.util.compiled import compiled, inlined

# Differences from the largest logit are clamped to this value, whose exponential is 0.
_MIN_DIFFERENCE = -100.0


def argmax(logits: Tensor) -> Tensor:
    """Return the most likely token of each row, like `logits.argmax(-1)`.

    For a row that contains NaN, or whose largest logit is infinite, the result is NO_TOKEN.

    Args:
        logits: Any float tensor [..., vocab].
    """
    if not _readable(logits):
        return TORCH.argmax(logits)
    return torch.from_numpy(_search(logits, 1, False)[0]).reshape(logits.shape[:-1])


def topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the top-k tokens of each row and their probabilities, both [..., count].

    The most likely token comes first. For a row that contains NaN, or whose largest logit is
    infinite, the tokens are arbitrary, and their probabilities are 0.

    Args:
        logits: Any float tensor [..., vocab].
        count: Number of tokens per row. If it exceeds the vocabulary, all tokens are returned.
    """
    count = min(count, logits.shape[-1])
    if _readable(logits):
        token_ids, probs = map(torch.from_numpy, _search(logits, count, True))
        shape = *logits.shape[:-1], count
        return token_ids.view(shape), probs.view(shape)
    return TORCH.topk(logits, count)


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each row's softmax distribution in nats, float32 [...].

    Args:
        logits: Any float tensor [..., vocab] without NaN.
    """
    if not _readable(logits):
        return TORCH.entropies(logits)
    logits = logits.contiguous()
    result = np.empty(logits.numel() // logits.shape[-1], dtype=np.float32)
    _measure(logits.data_ptr(), KINDS[logits.dtype], logits.shape[-1], result)
    return torch.from_numpy(result).reshape(logits.shape[:-1])


def _readable(logits: Tensor) -> bool:
    """Return whether the compiled functions can read a tensor of logits."""
    in_memory = type(logits) is Tensor and logits.device.type == "cpu" and logits.dtype in KINDS
    return in_memory and logits.shape[-1] % simd_f32x8.WIDTH == 0


def _search(logits: Tensor, count: int, with_probs: bool) -> tuple[IntArray, NDArray[np.float32]]:
    """Run `_find` on a tensor of logits.

    Returns:
        The top-k tokens of each row, and their probabilities or logits, both [rows, count].
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
    """Write the top-k tokens of each row, and their probabilities or logits.

    A row is invalid if it contains NaN or if its largest logit is infinite. If `with_probs` is
    True, the function writes the first tokens of the vocabulary for an invalid row, each with
    probability 0. Otherwise, it writes NO_TOKEN.

    Args:
        logits: Address of the logits, [rows, vocab].
        kind: Number format of the logits, such as BFLOAT16.
        vocab: Number of tokens in the vocabulary, a multiple of 8.
        token_ids: Output array for the tokens, [rows, count].
        probs: Output array for the probabilities or logits, [rows, count].
        with_probs: Whether to write probabilities instead of logits.
    """
    count = token_ids.shape[1]
    size = FLOAT_BYTES if kind == FLOAT32 else HALF_BYTES
    block = np.empty(TOP_K_BLOCK, dtype=np.float32)
    largest = np.empty((vocab + TOP_K_BLOCK - 1) // TOP_K_BLOCK, dtype=np.float32)
    for row in range(len(token_ids)):
        source = logits + row * vocab * size
        is_valid = not np.isnan(_largest(kind, source, size, vocab, largest))
        if is_valid:
            _select(kind, source, size, vocab, largest, block, token_ids[row], probs[row])
            is_valid = np.isfinite(probs[row, 0])
        if not is_valid:
            for rank in range(count):
                token_ids[row, rank], probs[row, rank] = rank if with_probs else NO_TOKEN, 0.0
            continue
        if with_probs:
            best = probs[row, 0]
            total = _total(kind, source, size, vocab, best)
            for rank in range(count):
                probs[row, rank] = np.exp(probs[row, rank] - best) / total


@inlined
def _largest(
    kind: int, row: int, size: int, vocab: int, largest: NDArray[np.float32]
) -> np.float32:
    """Write the largest logit of each block in a row; return NaN if any logit is NaN.

    Args:
        kind: Number format of the logits.
        row: Address of the row.
        size: Size of a logit in bytes.
        vocab: Number of logits in the row.
        largest: Output array for the largest logit of each block of `TOP_K_BLOCK` logits.
    """
    checked = simd_f32x8.splat(np.float32(-np.inf))
    for block in range(len(largest)):
        first = block * TOP_K_BLOCK
        best = simd_f32x8.splat(np.float32(-np.inf))
        for i in range(first, min(first + TOP_K_BLOCK, vocab), simd_f32x8.WIDTH):
            vector = load_lanes(kind, row + i * size)
            best = simd_f32x8.larger(best, vector)
            checked = simd_f32x8.marked(checked, vector)
        largest[block] = simd_f32x8.largest(best)
    total: np.float32 = simd_f32x8.total(checked)
    return total


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
    """Write the tokens with the largest logits in a row, in descending order.

    The function uses insertion sort, and skips blocks whose largest logit is too small.

    Args:
        kind: Number format of the logits.
        row: Address of the row.
        size: Size of a logit in bytes.
        vocab: Number of logits in the row.
        largest: Largest logit of each block, from `_largest`.
        block: Memory for the logits of one block.
        token_ids: Output array for the tokens, [count].
        best: Output array for their logits, [count].
    """
    num_selected, count = 0, len(best)
    for number in range(len(largest)):
        if num_selected == count and not largest[number] > best[count - 1]:
            continue
        first = number * TOP_K_BLOCK
        length = min(TOP_K_BLOCK, vocab - first)
        load_row(kind, row + first * size, address(block), length)
        for i in range(length):
            value = block[i]
            if num_selected == count and not value > best[count - 1]:
                continue
            num_selected += num_selected < count
            rank = num_selected - 1
            while rank > 0 and value > best[rank - 1]:
                best[rank], token_ids[rank] = best[rank - 1], token_ids[rank - 1]
                rank -= 1
            best[rank], token_ids[rank] = value, first + i


@inlined
def _total(kind: int, row: int, size: int, vocab: int, best: np.float32) -> np.float32:
    """Return the sum of exp(logit - best) over all logits in a row.

    The arguments are the same as for `_largest`; `best` is the largest logit of the row.
    """
    totals, shift = simd_f32x8.splat(np.float32(0.0)), simd_f32x8.splat(best)
    for i in range(0, vocab, simd_f32x8.WIDTH):
        difference = simd_f32x8.subtract(load_lanes(kind, row + i * size), shift)
        totals = simd_f32x8.add(totals, simd_f32x8.exp(difference))
    total: np.float32 = simd_f32x8.total(totals)
    return total


@compiled
def _measure(logits: int, kind: int, vocab: int, result: NDArray[np.float32]) -> None:
    """Write the entropy of each row's softmax distribution to `result`.

    Let d be a logit's difference from the largest logit of the row, and w = exp(d). The function
    computes the entropy by this formula, which sums over the row:

        log(sum(w)) - sum(w * d) / sum(w)

    Differences are clamped to at least `_MIN_DIFFERENCE`.

    Args:
        logits: Address of the logits, [rows, vocab].
        kind: Number format of the logits, such as BFLOAT16.
        vocab: Number of tokens in the vocabulary, a multiple of 8.
        result: Output array for the entropies in nats, [rows].
    """
    size = FLOAT_BYTES if kind == FLOAT32 else HALF_BYTES
    zeros = simd_f32x8.splat(np.float32(0.0))
    for row in range(len(result)):
        source = logits + row * vocab * size
        best = simd_f32x8.splat(np.float32(-np.inf))
        for i in range(0, vocab, simd_f32x8.WIDTH):
            best = simd_f32x8.larger(best, load_lanes(kind, source + i * size))
        shift = simd_f32x8.splat(simd_f32x8.largest(best))
        bound = simd_f32x8.splat(np.float32(_MIN_DIFFERENCE))
        totals, weighted = zeros, zeros
        for i in range(0, vocab, simd_f32x8.WIDTH):
            vector = load_lanes(kind, source + i * size)
            difference = simd_f32x8.larger(simd_f32x8.subtract(vector, shift), bound)
            weight = simd_f32x8.exp(difference)
            totals = simd_f32x8.add(totals, weight)
            weighted = simd_f32x8.fused(weight, difference, weighted)
        total = simd_f32x8.total(totals)
        result[row] = np.log(total) - simd_f32x8.total(weighted) / total
