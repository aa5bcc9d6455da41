"""Check AMX products and attention on any processor by emulating the instructions.

They are compared with reference sums in the same order, and with plain decoding. This is a script,
because the emulation must be installed before the kernels are compiled:

    NUMBA_CACHE_DIR=$(mktemp -d) python -m tests.support.emulated_amx

The cache must be new: addresses of this process are compiled in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.cpu import amx, bf16_pack, simd_f32x8
from paceline.util.compiled import inlined, load_uint8, load_uint16, store_uint8

_ROOM = np.zeros(8 * amx.TILE // 4 + 16, dtype=np.float32)
_TILES = (_ROOM.ctypes.data + 63) // 64 * 64
# The float32 value of every bfloat16 number.
_WIDENED = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32).copy()
_TABLE = _WIDENED.ctypes.data
_ROWS = np.full(8, amx.SIDE, dtype=np.uint8)  # rows of each tile
_ROWS_AT = _ROWS.ctypes.data
_SCRATCH = np.zeros(48, dtype=np.float32)
_SUMS, _MADE = _SCRATCH.ctypes.data, _SCRATCH.ctypes.data + 64


@inlined
def _configure(address: int) -> None:
    for tile in range(8):
        store_uint8(_ROWS_AT + tile, load_uint8(address + 48 + tile))


@inlined
def _copy(source: int, stride: int, target: int, target_stride: int, rows: Any) -> None:
    for row in range(rows):
        for part in range(0, amx.ROW, 32):
            simd_f32x8.store(
                target + row * target_stride + part, simd_f32x8.load(source + row * stride + part)
            )


@inlined
def _clear(tile: int) -> None:
    for offset in range(0, amx.TILE, 32):
        simd_f32x8.store(_TILES + tile * amx.TILE + offset, simd_f32x8.splat(np.float32(0.0)))


@inlined
def _number(address: int) -> Any:
    return simd_f32x8.load_float(_TABLE + 4 * np.int64(load_uint16(address)))


@inlined
def _add_product(out: int, left: int, right: int) -> None:
    for row in range(np.int64(load_uint8(_ROWS_AT + out))):
        for column in range(amx.SIDE):
            first, second = np.float32(0.0), np.float32(0.0)
            for pair in range(amx.SIDE):
                a, b = (
                    _TILES + left * amx.TILE + row * amx.ROW + 4 * pair,
                    _TILES + right * amx.TILE + pair * amx.ROW + 4 * column,
                )
                first += _number(a) * _number(b)
                second += _number(a + 2) * _number(b + 2)
            address = _TILES + out * amx.TILE + row * amx.ROW + 4 * column
            simd_f32x8.store_float(address, simd_f32x8.load_float(address) + (first + second))


@inlined
def _round_row(source: int, target: int) -> None:
    for part in range(0, amx.ROW, 32):
        simd_f32x8.store_bfloat16(target + part // 2, simd_f32x8.load(source + part))


@inlined
def _round_sum(source: int, target: int, added: int) -> None:
    for part in range(0, amx.ROW, 32):
        simd_f32x8.store_bfloat16(
            target + part // 2,
            simd_f32x8.add(simd_f32x8.load(source + part), simd_f32x8.load(added + part)),
        )


@inlined
def _nothing() -> None:
    pass


@inlined
def _copy_half(source: int, target: int) -> None:
    store_uint8(target, load_uint8(source))
    store_uint8(target + 1, load_uint8(source + 1))


@inlined
def _weigh(numbers: int, steps: int, largest: Any) -> Any:
    for part in range(0, 64, 32):
        simd_f32x8.store(_SUMS + part, simd_f32x8.splat(np.float32(0.0)))
    for address in range(numbers, numbers + 128 * steps, 128):
        for part in range(0, 128, 32):  # two bfloat16 halves overwrite each weight's input
            weight = simd_f32x8.exp(
                simd_f32x8.subtract(simd_f32x8.load(address + part), simd_f32x8.splat(largest))
            )
            total = _SUMS + part % 64
            simd_f32x8.store(total, simd_f32x8.add(simd_f32x8.load(total), weight))
            simd_f32x8.store_bfloat16(_MADE + part // 2, weight)
            simd_f32x8.store_bfloat16(
                _MADE + 64 + part // 2,
                simd_f32x8.subtract(weight, simd_f32x8.load_bfloat16(_MADE + part // 2)),
            )
        for part in range(0, 128, 32):
            simd_f32x8.store(address + part, simd_f32x8.load(_MADE + part))
    return simd_f32x8.total(simd_f32x8.add(simd_f32x8.load(_SUMS), simd_f32x8.load(_SUMS + 32)))


@inlined
def _pair_up(first: int, second: int, out: int) -> None:
    for number in range(bf16_pack.COLUMNS):
        _copy_half(first + 2 * number, out + 4 * number)
        _copy_half(second + 2 * number, out + 4 * number + 2)


def _zero(tile: int) -> Any:
    @inlined
    def clear() -> None:
        _clear(tile)

    return clear


def _load(tile: int) -> Any:
    @inlined
    def load(source: int, stride: int) -> None:
        _copy(
            source, stride, _TILES + tile * amx.TILE, amx.ROW, np.int64(load_uint8(_ROWS_AT + tile))
        )

    return load


def _store(tile: int) -> Any:
    @inlined
    def store(target: int, stride: int) -> None:
        _copy(
            _TILES + tile * amx.TILE, amx.ROW, target, stride, np.int64(load_uint8(_ROWS_AT + tile))
        )

    return store


def _product_of(out: int, left: int, right: int) -> Any:
    @inlined
    def add_product() -> None:
        _add_product(out, left, right)

    return add_product


def main() -> None:
    """Install the emulation, then run the comparisons."""
    amx.configure, amx.release, amx.round_row, amx.round_sum = (
        _configure,
        _nothing,
        _round_row,
        _round_sum,
    )
    amx.zero, amx.load, amx.store, amx.add_product = _zero, _load, _store, _product_of
    vars(amx)["available"] = lambda: True
    bf16_pack.weigh, bf16_pack.pair_up = _weigh, _pair_up

    from paceline.cpu.decoder_layer import runner
    from paceline.cpu.linear import dispatch
    from paceline.cpu.linear.tiled import multiply_tiled
    from paceline.cpu.packed import product
    from tests.cpu.test_packed_products import check_packed_product
    from tests.cpu.test_product_order import SHAPES, check_bits, tiled_sums

    # The emulated tiles exist once per process; a processor has them once per thread.
    torch.set_num_threads(1)
    dispatch.kernel_of = vars(product)["kernel_of"] = lambda *_: multiply_tiled
    vars(runner)["kernel_of"] = dispatch.kernel_of
    for shape in SHAPES[:5]:
        check_bits(tiled_sums, *shape)
    for name in ("Q4_1", "Q6_K"):
        check_packed_product(name)

    from tests.attention import test_bias, test_by_position, test_tiled
    from tests.model import test_layer_forward

    test_layer_forward.test_compiled_call_has_the_bits_of_the_modules("llama")

    for heads in ((9, 3, 64, 64), (4, 2, 32, 48), (20, 1, 64, 64)):
        test_by_position.test_trees_of_a_ragged_batch_have_the_bits_of_plain_decoding(
            heads, torch.bfloat16
        )
        test_by_position.test_values_are_those_of_the_reference(heads, torch.bfloat16)
        test_bias.test_biased_trees_have_the_bits_of_plain_decoding(heads, torch.bfloat16)
    test_tiled.test_values_are_added_in_the_documented_order(33, 80)
    test_tiled.test_nan_affects_only_queries_that_see_it(torch.bfloat16, 5)


if __name__ == "__main__":
    main()
