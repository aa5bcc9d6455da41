"""Row counts for which a function of rows gives every row the same bits.

A matrix product picks its kernel, and with it the order of its sums, by the number of rows; an
activation computes the last few elements of a tensor with another routine. So a token's numbers may
depend on how many others share the forward. Counts whose results agree bit for bit are a class.
Which ones do is found by trying: it depends on processor, libraries, threads and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RowFunction = Callable[[Tensor], Tensor]  # [rows, ...] -> [rows, ...]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TWICE = 16  # row counts up to this one are tried at two places
_DISTINCT = (
    61  # different rows; a prime, so that repeated they fall on every place of a kernel's tiles
)
_PARTIAL_SUM = (
    256.0  # float16 neither overflows there nor loses the rounding error below its smallest number
)


@dataclass(frozen=True, slots=True)
class RowClass:
    """Row counts from `least` to `most`, all of which give a row the same bits."""

    least: int
    most: int


def agreeing_runs(function: RowFunction, rows: Tensor, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the first count of each run of `counts` that agree with one another, ascending.

    Each count is tried on rows from the middle, a small one on the first and on the last: rows at
    its ends are inner ones there.

    Args:
        rows: [counts[-1], ...].
        counts: ascending.
    """
    starts: list[int] = []
    last = top = counts[-1]
    expected = bits(function(rows))
    for count in reversed(counts[:-1]):
        places = {0, top - count} if count <= _TWICE else {(top - count) // 2}
        if not all(
            torch.equal(bits(function(rows[at : at + count])), expected[at : at + count])
            for at in places
        ):
            starts.append(last)
            top = count
            expected = bits(function(rows[:count]))
        last = count
    starts.append(last)
    return tuple(reversed(starts))


def widest_class(runs: Iterable[tuple[int, ...]], counts: Sequence[int]) -> RowClass:
    """Return the widest class that all of several functions have in common.

    Args:
        runs: of each function, what `agreeing_runs` returned.
        counts: those that were tried, ascending; a class begins and ends with one of them.
    """
    starts = sorted({start for one in runs for start in one})
    ends = [max(count for count in counts if count < start) for start in starts[1:]] + [counts[-1]]
    return max(
        (RowClass(*ends) for ends in zip(starts, ends, strict=True)),
        key=lambda one: one.most - one.least,
    )


def bits(tensor: Tensor) -> Tensor:
    """Return the numbers as the integers their bits spell: unequal zeros differ, and equal NaNs
    do not.
    """
    return tensor.contiguous().view(_BITS[tensor.element_size()])


def heavy_tailed(
    count: int, shape: Sequence[int], like: Tensor, generator: torch.Generator
) -> Tensor:
    """Return rows [count, *shape] of `like`'s dtype and device, in which a few columns are much
    larger than the others.

    Gaussian rows hide differences: after rounding to half precision one product of thousands shows
    them.
    """
    distinct = torch.randn(min(count, _DISTINCT), *shape, generator=generator)
    distinct *= torch.randn(1, *shape, generator=generator).exp()
    return distinct.to(like.device, like.dtype)[
        torch.arange(count, device=like.device) % len(distinct)
    ]


def fold(weight: Tensor, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a weight and rows whose true product is zero, so that what comes out is the rounding
    error of the sums and no more.

    Another order of the sums then gives other bits in four to nine of ten elements, in half
    precision too, where rounding hides it from all but one in 10^5 of an ordinary product. Half of
    the inner dimension becomes the negative of the other half, at random places.

    Args:
        weight: [out, in]; the result has its strides, and its alignment in memory, which kernels
            look at.
        rows: [count, in], finite.
    """
    inner = weight.shape[1]
    order = torch.randperm(inner, generator=generator).to(weight.device)
    one, other = order[: inner // 2], order[inner // 2 : inner // 2 * 2]
    folded, paired = _twin(weight), rows.clone()
    folded.index_copy_(1, other, weight.index_select(1, one).neg_())
    paired[:, other] = rows[:, one]
    if inner % 2:
        paired[:, order[-1]] = 0
    size = float(
        paired[:_DISTINCT].float().pow(2).sum(1).mean().sqrt()
        * weight[:64].float().pow(2).mean().sqrt()
    )
    return folded, paired * (_PARTIAL_SUM / size) if size > 0 else paired


def _twin(weight: Tensor) -> Tensor:
    """Return a copy with the same strides and the same alignment to 64 bytes."""
    spare = 64 // weight.element_size()
    store = weight.new_empty(weight.numel() + spare)
    start = (weight.data_ptr() - store.data_ptr()) % 64 // weight.element_size()
    return (
        store[start : start + weight.numel()]
        .as_strided(weight.shape, weight.stride(), start)
        .copy_(weight)
    )
