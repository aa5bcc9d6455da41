"""Find ranges of row counts within which a row's result is bit-identical.

The number of rows in a matrix product determines the kernel, and the kernel determines the order of
the sums. An activation function computes the last elements of a tensor with a different routine. A
token's values may therefore depend on how many tokens share the forward pass.

Row counts with bit-identical results form a class. For example, the classes may be 1 to 3 rows and
4 to 64 rows. Classes depend on the processor, the libraries, the number of threads and the shapes,
so they must be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.invariance.settings import DISTINCT_ROWS, MAX_TWICE_ROWS, PARTIAL_SUM
from paceline.util.tensor_bits import as_integers

RowFunction = Callable[[Tensor], Tensor]  # [rows, ...] -> [rows, ...]


@dataclass(frozen=True, slots=True)
class RowClass:
    """A range of row counts with bit-identical results.

    Attributes:
        min_rows: Minimum row count.
        max_rows: Maximum row count.
    """

    min_rows: int
    max_rows: int


def agreeing_runs(function: RowFunction, rows: Tensor, counts: Sequence[int]) -> tuple[int, ...]:
    """Find ranges of row counts within which a function's results are bit-identical.

    The test begins with the largest row count, and continues with smaller ones. A row count belongs
    to the current range if its results have the same bits as those for the range's largest row
    count. Otherwise, the row count is the largest of a new range.

    Each call of `function` receives consecutive rows of `rows`. For a large row count, these are
    rows from the middle. For a small row count, the test calls `function` twice: with the first
    rows and with the last rows.

    Args:
        function: Function to test, which maps rows to rows.
        rows: Rows from which the inputs are taken, [counts[-1], ...].
        counts: Row counts to compare, ascending.
    Returns:
        The first row count of each range, ascending.
    """
    starts: list[int] = []
    last = top = counts[-1]
    expected = bits(function(rows))
    for count in reversed(counts[:-1]):
        offsets = {0, top - count} if count <= MAX_TWICE_ROWS else {(top - count) // 2}
        if not all(
            torch.equal(bits(function(rows[at : at + count])), expected[at : at + count])
            for at in offsets
        ):
            starts.append(last)
            top = count
            expected = bits(function(rows[:count]))
        last = count
    starts.append(last)
    return tuple(reversed(starts))


def widest_class(runs: Iterable[tuple[int, ...]], counts: Sequence[int]) -> RowClass:
    """Return the widest range of row counts in which no function changes its results.

    Args:
        runs: Result of `agreeing_runs` for each function.
        counts: Row counts that were compared, ascending. The range begins and ends with one of
            them.
    """
    starts = sorted({start for function_runs in runs for start in function_runs})
    ends = [max(count for count in counts if count < start) for start in starts[1:]] + [counts[-1]]
    return max(
        (RowClass(*ends) for ends in zip(starts, ends, strict=True)),
        key=lambda rows: rows.max_rows - rows.min_rows,
    )


def bits(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor's values, as integers.

    As integers, positive and negative zeros differ, and NaNs with the same bits are equal.
    """
    return as_integers(tensor.contiguous(), tensor.element_size())


def heavy_tailed(
    count: int, shape: Sequence[int], like: Tensor, generator: torch.Generator
) -> Tensor:
    """Return random rows in which a few columns have much larger values.

    Gaussian rows would hide differences between row counts: after rounding to half precision, only
    one in several thousand products would differ.

    Args:
        count: Number of rows.
        shape: Shape of a row.
        like: Tensor with the dtype and device of the result.
        generator: Source of the random numbers.
    """
    distinct = torch.randn(min(count, DISTINCT_ROWS), *shape, generator=generator)
    distinct *= torch.randn(1, *shape, generator=generator).exp()
    return distinct.to(like.device, like.dtype)[
        torch.arange(count, device=like.device) % len(distinct)
    ]


def fold(weight: Tensor, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a weight and rows whose exact product is zero.

    The function divides the inner dimension into two halves, at random positions. In the weight,
    the second half becomes the negative of the first half. In each row, the second half becomes
    equal to the first half. For example:

        weight [a, b] becomes [a, -a]
        row    [x, y] becomes [x, x]

    The computed product then consists only of rounding errors. A different order of summation
    changes the bits of 40 % to 90 % of the product's elements, even in half precision. In an
    ordinary product, rounding hides the effect of the order in all but one of 10^5 elements.

    Args:
        weight: Weight [out, in]. The returned weight has the same strides and alignment, which
            determine the kernel.
        rows: Finite rows [count, in].
        generator: Source of the random numbers.
    """
    inner = weight.shape[1]
    order = torch.randperm(inner, generator=generator).to(weight.device)
    first_half, second_half = order[: inner // 2], order[inner // 2 : inner // 2 * 2]
    folded, paired = _twin(weight), rows.clone()
    folded.index_copy_(1, second_half, weight.index_select(1, first_half).neg_())
    paired[:, second_half] = rows[:, first_half]
    if inner % 2:
        paired[:, order[-1]] = 0
    size = float(
        paired[:DISTINCT_ROWS].float().pow(2).sum(1).mean().sqrt()
        * weight[:64].float().pow(2).mean().sqrt()
    )
    return folded, paired * (PARTIAL_SUM / size) if size > 0 else paired


def _twin(weight: Tensor) -> Tensor:
    """Copy a weight, keeping its strides and its offset from 64-byte alignment."""
    spare = 64 // weight.element_size()
    store = weight.new_empty(weight.numel() + spare)
    start = (weight.data_ptr() - store.data_ptr()) % 64 // weight.element_size()
    return (
        store[start : start + weight.numel()]
        .as_strided(weight.shape, weight.stride(), start)
        .copy_(weight)
    )
