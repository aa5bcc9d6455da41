"""Run the products by AMX on any processor, its instructions emulated, against the sums in their order. A script of its own,
since the instructions are put in place before the products are compiled:

    NUMBA_CACHE_DIR=$(mktemp -d) python -m tests.support.emulated_amx

The cache must be a new one: addresses of this process are compiled in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.common import amx, lanes
from paceline.common.compiled import inlined, load_uint16

_ROOM = np.zeros(8 * amx.TILE // 4 + 16, dtype=np.float32)
_TILES = (_ROOM.ctypes.data + 63) // 64 * 64
_WIDENED = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32).copy()  # of every bfloat16 number
_TABLE = _WIDENED.ctypes.data


@inlined
def _copy(source: int, stride: int, target: int, target_stride: int) -> None:
    for row in range(amx.SIDE):
        for part in range(0, amx.ROW, 32):
            lanes.store(target + row * target_stride + part, lanes.load(source + row * stride + part))


@inlined
def _clear(tile: int) -> None:
    for place in range(0, amx.TILE, 32):
        lanes.store(_TILES + tile * amx.TILE + place, lanes.splat(np.float32(0.0)))


@inlined
def _number(place: int) -> Any:
    return lanes.load_float(_TABLE + 4 * np.int64(load_uint16(place)))


@inlined
def _add_product(out: int, left: int, right: int) -> None:
    for row in range(amx.SIDE):
        for column in range(amx.SIDE):
            first, second = np.float32(0.0), np.float32(0.0)
            for pair in range(amx.SIDE):
                a, b = (
                    _TILES + left * amx.TILE + row * amx.ROW + 4 * pair,
                    _TILES + right * amx.TILE + pair * amx.ROW + 4 * column,
                )
                first += _number(a) * _number(b)
                second += _number(a + 2) * _number(b + 2)
            place = _TILES + out * amx.TILE + row * amx.ROW + 4 * column
            lanes.store_float(place, lanes.load_float(place) + (first + second))


@inlined
def _round_row(source: int, target: int) -> None:
    for part in range(0, amx.ROW, 32):
        lanes.store_bfloat16(target + part // 2, lanes.load(source + part))


@inlined
def _round_sum(source: int, target: int, added: int) -> None:
    for part in range(0, amx.ROW, 32):
        lanes.store_bfloat16(target + part // 2, lanes.add(lanes.load(source + part), lanes.load(added + part)))


@inlined
def _nothing() -> None:
    pass


@inlined
def _ignore(place: int) -> None:
    pass


def _zero(tile: int) -> Any:
    @inlined
    def clear() -> None:
        _clear(tile)

    return clear


def _load(tile: int) -> Any:
    @inlined
    def load(source: int, stride: int) -> None:
        _copy(source, stride, _TILES + tile * amx.TILE, amx.ROW)

    return load


def _store(tile: int) -> Any:
    @inlined
    def store(target: int, stride: int) -> None:
        _copy(_TILES + tile * amx.TILE, amx.ROW, target, stride)

    return store


def _product_of(out: int, left: int, right: int) -> Any:
    @inlined
    def add_product() -> None:
        _add_product(out, left, right)

    return add_product


def main() -> None:
    """Put the emulation in place, then compare."""
    amx.configure, amx.release, amx.round_row, amx.round_sum = _ignore, _nothing, _round_row, _round_sum
    amx.zero, amx.load, amx.store, amx.add_product = _zero, _load, _store, _product_of

    from paceline.engine.products import own
    from paceline.engine.products.tiled import multiply_tiled
    from tests.engine.test_product_order import SHAPES, check_bits, tiled_sums

    torch.set_num_threads(1)  # the emulated tiles are there once, those of a processor once for each thread
    own._kernel = lambda *_: multiply_tiled
    for shape in SHAPES[:5]:
        check_bits(tiled_sums, *shape)


if __name__ == "__main__":
    main()
