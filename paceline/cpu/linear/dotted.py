"""Products of rows with a weight by dot products of bfloat16 numbers (AVX512_BF16), for processors
without matrix instructions.

All sums are in float32, and in this order: lane l of four adds up the products of the numbers 2 l +
1 and 2 l, 2 l + 9 and 2 l + 8, ... of row and weight (`paceline.cpu.avx512_dot`); then lanes l and
l + 2 are added, 0 and 1. How many rows and outputs are computed together is a matter of registers.
"""

from __future__ import annotations

import numba
import numpy as np

from paceline.cpu import avx512_dot
from paceline.cpu.attention.tiles import BFLOAT16, FLOAT, address, aligned
from paceline.cpu.linear.kernel import PRODUCT, TASK, take_task, write_out
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined

INNER, OUTER = avx512_dot.LINE // 2, avx512_dot.OUTPUTS  # sizes of a weight are multiples of these
_CACHE = 400_000  # bytes of the second cache that rows may fill
# outputs from those that are computed to those that are fetched: memory answers late
_AHEAD = 2 * avx512_dot.OUTPUTS

_one, _two, _three = (avx512_dot.multiply_blocks(count) for count in (1, 2, 3))
_HALF = avx512_dot.OUTPUTS // 2
_four = avx512_dot.multiply_blocks(avx512_dot.BLOCKS + 1, _HALF)  # as many registers again


def _multiply_all(place: int) -> int:
    """Multiply until no output is left. `place`: where the `Product` lies, in bfloat16."""
    product = numba.carray(as_pointer(place), 1, PRODUCT)[0]
    count, inner, outer = product.count, product.inner, product.outer
    first = take_task(place)
    if first >= outer:
        return 0
    size = inner * FLOAT // 2
    blocks = (count + avx512_dot.ROWS - 1) // avx512_dot.ROWS
    most = max(avx512_dot.BLOCKS, _CACHE // (avx512_dot.ROWS * size))
    packed = np.empty(
        (blocks * avx512_dot.ROWS * size + avx512_dot.LINE) // FLOAT, dtype=np.float32
    )
    sums = np.empty(min(blocks, most) * avx512_dot.ROWS * TASK, dtype=np.float32)
    _pack(product.rows, aligned(packed), count, size)
    done = 0
    while first < outer:
        width = min(TASK, outer - first)
        for block in range(0, blocks, most):
            some = min(most, blocks - block)
            # here, since an array lives until its last use
            source = aligned(packed) + block * avx512_dot.ROWS * size
            for output in range(first, first + width, avx512_dot.OUTPUTS):
                ahead = _AHEAD * size if block == 0 and output + _AHEAD < outer else 0
                _multiply(
                    source,
                    product.weight + output * size,
                    size,
                    address(sums) + (output - first) * FLOAT,
                    some,
                    ahead,
                )
            row = block * avx512_dot.ROWS
            write_out(
                address(sums),
                product.bias,
                product.out + row * outer * 2,
                BFLOAT16,
                min(some * avx512_dot.ROWS, count - row),
                first,
                width,
                outer,
            )
        done += 1
        first = take_task(place)
    return done


multiply_dotted = TeamJob(_multiply_all, PRODUCT)


@inlined
def _pack(rows: int, packed: int, count: int, size: int) -> None:
    """Write rows as blocks; the last row fills up the last one."""
    for row in range((count + avx512_dot.ROWS - 1) // avx512_dot.ROWS * avx512_dot.ROWS):
        source = rows + min(row, count - 1) * size
        target = (
            packed
            + row // avx512_dot.ROWS * avx512_dot.ROWS * size
            + row % avx512_dot.ROWS * avx512_dot.PIECE
        )
        for place in range(0, size, avx512_dot.PIECE):
            avx512_dot.copy_piece(source + place, target + place * avx512_dot.ROWS)


@inlined
def _multiply(blocks: int, weight: int, size: int, sums: int, count: int, ahead: int) -> None:
    """All blocks with eight outputs, in groups as equal as can be, each of which fetches its part
    of what lies ahead.

    Memory gives its lines one by one: what is asked for all at once makes the first group wait, and
    the others find it idle. Four blocks, which memory still outlasts, are one group, with half the
    outputs at a time.
    """
    if count == avx512_dot.BLOCKS + 1:
        parts = avx512_dot.ALL if ahead else 0
        _four(blocks, weight, size, sums, ahead, parts)
        _four(blocks, weight + _HALF * size, size, sums + _HALF * FLOAT, ahead, parts)
        return
    groups = (count + avx512_dot.BLOCKS - 1) // avx512_dot.BLOCKS
    done, fetched = 0, 0 if ahead else avx512_dot.PARTS
    while groups:
        some = (count - done + groups - 1) // groups
        source, target = (
            blocks + done * avx512_dot.ROWS * size,
            sums + done * avx512_dot.ROWS * avx512_dot.STRIDE,
        )
        last = fetched + (avx512_dot.PARTS - fetched + groups - 1) // groups
        parts = (1 << last) - (1 << fetched)
        if some == 3:
            _three(source, weight, size, target, ahead, parts)
        elif some == 2:
            _two(source, weight, size, target, ahead, parts)
        else:
            _one(source, weight, size, target, ahead, parts)
        fetched = last
        done += some
        groups -= 1
