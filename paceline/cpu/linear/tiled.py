"""Products of rows with a weight by Intel's matrix instructions: sixteen rows in the time it takes
to read the weight once.

What is computed is the transposed product, weight @ rows.T: then the weight is read in place, 16
outputs by 32 numbers at a time, and only the rows, which are few, have to be put in another order.
A row's numbers depend on that row alone, to the last bit: each sum is made by the same instructions
in the same order (`paceline.cpu.amx`), 32 numbers of row and weight after the other, and how many
rows and outputs are computed together is a matter of registers.
"""

from __future__ import annotations

import numba
import numpy as np

from paceline.cpu import amx, simd_f32x8
from paceline.cpu.attention.tiles import FLOAT, address, aligned
from paceline.cpu.linear.kernel import PRODUCT, TASK, Product, take_task
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined

INNER, OUTER = 32, amx.SIDE  # sizes of a weight are multiples of these
_BLOCK = 2 * OUTER  # of them, and rows, computed at once
_TALL = 16  # blocks of rows with which 16 outputs at a time are made, where there are more than two
_AHEAD = 2  # times 16 outputs from those that are computed to those that are fetched
# places of memory that are read from at a time: more than one, as a processor fetches ahead in each
# by itself
_STREAMS = 4
_STEP = INNER * FLOAT // 2  # bytes of a row or weight in one tile
_CONFIGURATION = np.frombuffer(amx.configuration(), dtype=np.float32)  # 64 bytes

_clear0, _clear1, _clear2, _clear3 = (amx.zero(tile) for tile in range(4))
_store0, _store1, _store2, _store3 = (amx.store(tile) for tile in range(4))
_load_weight0, _load_weight1, _load_rows0, _load_rows1 = (amx.load(tile) for tile in range(4, 8))
_multiply00, _multiply10 = amx.add_product(0, 4, 6), amx.add_product(1, 5, 6)
_multiply01, _multiply11 = amx.add_product(2, 4, 7), amx.add_product(3, 5, 7)
# Of one weight with the second, third and fourth rows.
_multiply01_alone, _multiply02, _multiply03 = (
    amx.add_product(1, 4, 7),
    amx.add_product(2, 4, 6),
    amx.add_product(3, 4, 7),
)


def _multiply_all(place: int) -> int:
    """Multiply until no output is left. `place`: where the `Product` lies, in bfloat16."""
    product = numba.carray(as_pointer(place), 1, PRODUCT)[0]
    count, inner, outer = product.count, product.inner, product.outer
    first = take_task(place)
    if first >= outer:
        return 0
    blocks = (count + amx.SIDE - 1) // amx.SIDE
    store = np.empty(
        (4 * amx.TILE + amx.ROW) // FLOAT + (blocks + 1) * amx.SIDE * inner // 2, dtype=np.float32
    )
    _pack(product.rows, aligned(store) + 4 * amx.TILE, count, inner, blocks)
    amx.configure(address(_CONFIGURATION))
    done = 0
    while first < outer:
        sums = aligned(store)  # here, since an array lives until its last use
        packed = sums + 4 * amx.TILE
        last = min(first + TASK, outer)
        if 2 < blocks <= _TALL:
            for output in range(first, last, OUTER):
                _multiply_tall(product, packed, sums, blocks, output)
            last = first
        for output in range(first, last, _BLOCK):
            width = min(_BLOCK, outer - output)
            fetched = 0 if output + 2 * _BLOCK <= outer else _STREAMS
            for block in range(0, blocks, 2):
                source = packed + block * amx.SIDE * inner * FLOAT // 2
                origin = product.weight + output * inner * FLOAT // 2
                left = (blocks - block + 1) // 2
                last = fetched + _part(_STREAMS - fetched, left)
                if block + 1 < blocks:
                    _multiply_four(source, origin, sums, inner, width, fetched, last)
                else:
                    _multiply_two(source, origin, sums, inner, width, fetched, last)
                fetched = last
                _write_out(
                    sums, product, block * amx.SIDE, output, width, 4 if block + 1 < blocks else 2
                )
        done += 1
        first = take_task(place)
    amx.release()
    return done


multiply_tiled = TeamJob(_multiply_all, PRODUCT)


@inlined
def _part(rest: int, left: int) -> int:
    """Return how much of what is left to do the next of `left` equal passes does, in whole
    numbers.
    """
    return (rest + left - 1) // left


@inlined
def _pack(rows: int, packed: int, count: int, inner: int, blocks: int) -> None:
    """Write rows, 16 at a time, as the tiles that follow one another in a product; zeros for
    those that fill up the last 16.
    """
    size = inner * FLOAT // 2
    spare = packed + blocks * amx.SIDE * size
    for block in range(blocks):
        source, target = rows + block * amx.SIDE * size, packed + block * amx.SIDE * size
        left = min(count - block * amx.SIDE, amx.SIDE)
        if left < amx.SIDE:
            for place in range(0, left * size, 32):
                simd_f32x8.store(spare + place, simd_f32x8.load(source + place))
            for place in range(left * size, amx.SIDE * size, 32):
                simd_f32x8.store(spare + place, simd_f32x8.splat(np.float32(0.0)))
            source = spare
        for step in range(inner // INNER):
            amx.transpose(source + step * _STEP, size, target + step * amx.TILE, amx.ROW)


@inlined
def _multiply_tall(product: Product, rows: int, sums: int, blocks: int, output: int) -> None:
    """16 outputs of all rows, up to 64 at a time: groups as equal as can be, each of which fetches
    its part of what lies ahead.

    Memory is read all the time, and not by the first group alone, while the others wait or find it
    idle.
    """
    size = OUTER * product.inner * FLOAT // 2
    ahead = output + (_AHEAD + 1) * OUTER <= product.outer
    groups, done, fetched = (blocks + 3) // 4, 0, 0 if ahead else _STREAMS
    for group in range(groups):
        left = groups - group
        some, last = _part(blocks - done, left), fetched + _part(_STREAMS - fetched, left)
        _multiply_column(product, rows + done * size, sums, some, output, fetched, last)
        for block in range(some):
            _write_tile(sums + block * amx.TILE, product, (done + block) * amx.SIDE, output)
        done, fetched = done + some, last


@inlined
def _multiply_column(
    product: Product, rows: int, sums: int, blocks: int, output: int, fetched: int, last: int
) -> None:
    """16 outputs of 32, 48 or 64 rows, as four tiles."""
    stride = product.inner * FLOAT // 2
    weight, size = product.weight + output * stride, OUTER * stride
    # where there are no more rows come others, whose numbers go nowhere
    third = rows + (2 * size if blocks > 2 else 0)
    _clear0(), _clear1(), _clear2(), _clear3()
    for step in range(product.inner // INNER):
        _fetch(weight + _AHEAD * size, size, step, amx.TILE, fetched, last)
        place = step * amx.TILE
        _load_weight0(weight + step * _STEP, stride)
        _load_rows0(rows + place, amx.ROW)
        _multiply00()
        _load_rows1(rows + size + place, amx.ROW)
        _multiply01_alone()
        _load_rows0(third + place, amx.ROW)
        _multiply02()
        if blocks == 4:
            _load_rows1(rows + 3 * size + place, amx.ROW)
            _multiply03()
    _store0(sums, amx.ROW)
    _store1(sums + amx.TILE, amx.ROW)
    _store2(sums + 2 * amx.TILE, amx.ROW)
    _store3(sums + 3 * amx.TILE, amx.ROW)


@inlined
def _multiply_four(
    rows: int, weight: int, sums: int, inner: int, width: int, fetched: int, last: int
) -> None:
    """32 outputs of 32 rows, as four tiles."""
    stride = inner * FLOAT // 2
    other = weight + (amx.SIDE * stride if width > amx.SIDE else 0)
    _clear0(), _clear1(), _clear2(), _clear3()
    for step in range(inner // INNER):
        _multiply_step(rows, weight, other, stride, step, fetched, last)
        _load_rows1(rows + amx.SIDE * stride + step * amx.TILE, amx.ROW)
        _multiply01()
        _multiply11()
    _store0(sums, amx.ROW)
    _store1(sums + amx.TILE, amx.ROW)
    _store2(sums + 2 * amx.TILE, amx.ROW)
    _store3(sums + 3 * amx.TILE, amx.ROW)


@inlined
def _multiply_two(
    rows: int, weight: int, sums: int, inner: int, width: int, fetched: int, last: int
) -> None:
    """32 outputs of 16 rows, as two tiles."""
    stride = inner * FLOAT // 2
    other = weight + (amx.SIDE * stride if width > amx.SIDE else 0)
    _clear0(), _clear1()
    for step in range(inner // INNER):
        _multiply_step(rows, weight, other, stride, step, fetched, last)
    _store0(sums, amx.ROW)
    _store1(sums + amx.TILE, amx.ROW)


@inlined
def _multiply_step(
    rows: int, weight: int, other: int, stride: int, step: int, fetched: int, last: int
) -> None:
    """Add the products of the next 32 numbers of 32 outputs and 16 rows; the outputs' stay in
    their tiles.
    """
    _fetch(weight + _BLOCK * stride, _BLOCK * stride, step, 2 * amx.TILE, fetched, last)
    _load_weight0(weight + step * _STEP, stride)
    _load_weight1(other + step * _STEP, stride)
    _load_rows0(rows + step * amx.TILE, amx.ROW)
    _multiply00()
    _multiply10()


@inlined
def _fetch(place: int, size: int, step: int, each: int, first: int, last: int) -> None:
    """Have a part of the weights that lie at a place, `size` bytes, brought nearer: what belongs to
    a step, `each` bytes, but of some streams only."""
    for stream in range(first, last):
        part = place + stream * size // _STREAMS + step * (each // _STREAMS)
        for line in range(0, each // _STREAMS, amx.ROW):
            simd_f32x8.prefetch_second(part + line)


@inlined
def _write_out(sums: int, product: Product, row: int, output: int, width: int, tiles: int) -> None:
    """Write up to four tiles to their places, two of them side by side."""
    for tile in range(tiles):
        if tile % 2 * amx.SIDE < width:
            _write_tile(
                sums + tile * amx.TILE,
                product,
                row + tile // 2 * amx.SIDE,
                output + tile % 2 * amx.SIDE,
            )


@inlined
def _write_tile(source: int, product: Product, row: int, output: int) -> None:
    """Write a tile, [16 outputs, 16 rows], from that row and output on, with the bias."""
    amx.transpose(source, amx.ROW, source, amx.ROW)
    for number in range(min(product.count - row, amx.SIDE)):
        place = product.out + ((row + number) * product.outer + output) * FLOAT // 2
        if product.bias:
            amx.round_sum(source + number * amx.ROW, place, product.bias + output * FLOAT)
        else:
            amx.round_row(source + number * amx.ROW, place)
