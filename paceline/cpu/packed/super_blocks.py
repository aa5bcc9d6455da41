"""Emit code that decodes blocks of 256 weights with a scale per 16 or 32 weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from paceline.cpu.emit import pick, spread
from paceline.cpu.linear.unpack_call import PART
from paceline.cpu.packed.factors import Factor, Factors
from paceline.cpu.packed.reading import (
    HALF,
    IQ4_CODES,
    LANES,
    NIBBLES,
    NUMBERS,
    WORD,
    WORDS,
    NibbleGroup,
    Reader,
    constant,
    load,
    load_rows,
    looked_up,
    nibble_bytes,
    scale_at,
)

_PARTS = 8  # parts in a block
_FOUR, _EIGHT = (ir.VectorType(WORD, count) for count in (4, _PARTS))


def _factors_of_blocks(builder: Any, vectors: Sequence[Any]) -> list[Factor]:
    """Emit instructions that transpose the factors (scales or minimums) of blocks.

    After the transposition of four blocks, adjacent lanes contain corresponding factors. For
    example, for blocks a, b, c and d:

        before: a0 a1 a2 ...    b0 b1 b2 ...    c0 c1 c2 ...    d0 d1 d2 ...
        after:  a0 b0 c0 d0  a1 b1 c1 d1  a2 b2 c2 d2  ...

    The vector of a single block remains unchanged.

    Args:
        builder: LLVM builder.
        vectors: For each of one or four blocks, a vector of 16 lanes with the block's factors.
    Returns:
        16 `Factor` objects. Number i contains the i-th factor of each block.
    """
    if len(vectors) == 1:
        return [Factor(vectors[0], (lane,)) for lane in range(LANES)]
    factors = []
    for first in (0, LANES // 2):
        lanes = [*range(first, first + 8), *range(LANES + first, LANES + first + 8)]
        first_pair, second_pair = (
            pick(builder, vectors[block], vectors[block + 1], lanes) for block in (0, 2)
        )
        for start in (0, 4):
            order = [
                lane + start + number for number in range(4) for lane in (0, 8, LANES, LANES + 8)
            ]
            vector = pick(builder, first_pair, second_pair, order)
            factors += [
                Factor(vector, tuple(range(4 * number, 4 * number + 4))) for number in range(4)
            ]
    return factors


class _K4(Reader):
    """Base class of readers for blocks with a scale and a minimum per part.

    A part consists of 32 numbers, which are stored as integers. Each part has a scale and a
    minimum, both six-bit integers. The block has another scale and minimum, both float16. A number
    is computed as follows:

        (block's scale * part's scale) * integer - (block's minimum * part's minimum)
    """

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that compute the scale and the minimum of each block's parts."""
        both = _factors_of_blocks(builder, [self._factors(builder, block) for block in blocks])
        return Factors(both[:_PARTS], both[_PARTS:], 2)

    def _factors(self, builder: Any, block: Any) -> Any:
        """Emit instructions that compute the scale and minimum of each part of a block.

        The result is a vector of 16 lanes, where p is the index of a part:

            lane p:      block's scale * part's scale
            lane 8 + p:  -(block's minimum * part's minimum)
        """
        low, mid, high = (load(builder, block, offset, WORD) for offset in (4, 8, 12))

        def bits(value: Any, shift: int, mask: int) -> Any:
            shifted = builder.lshr(value, ir.Constant(WORD, shift)) if shift else value
            return builder.and_(shifted, ir.Constant(WORD, mask))

        six, four, top = 0x3F3F3F3F, 0x0F0F0F0F, 0x30303030
        packed = ir.Constant(_FOUR, ir.Undefined)
        for number, word in enumerate(
            (
                bits(low, 0, six),
                builder.or_(bits(high, 0, four), bits(low, 2, top)),
                bits(mid, 0, six),
                builder.or_(bits(high, 4, four), bits(mid, 2, top)),
            )
        ):
            packed = builder.insert_element(packed, word, ir.Constant(WORD, number))
        small = builder.uitofp(builder.zext(builder.bitcast(packed, NIBBLES), WORDS), NUMBERS)
        scale, minimum = (
            spread(builder, scale_at(builder, block, offset), LANES) for offset in (0, 2)
        )
        negative = builder.fneg(minimum)  # `Factors.apply` adds the minimum
        lanes = [*range(LANES // 2), *range(LANES, LANES + LANES // 2)]
        return builder.fmul(pick(builder, scale, negative, lanes), small)


def _pair_nibbles(builder: Any, blocks: Sequence[Any], offset: int, part: int) -> Any:
    """Emit instructions that load one part (32 four-bit integers) of each block.

    Parts 2 i and 2 i + 1 share 32 bytes. Part 2 i is stored in the low four bits of each byte, and
    part 2 i + 1 in the high four bits.

    Args:
        builder: LLVM builder.
        blocks: Addresses of the blocks.
        offset: Offset of part 0 in a block, in bytes.
        part: Index of the part to load.
    """
    both = load_rows(builder, blocks, offset + part // 2 * PART)
    if part % 2:
        return builder.lshr(both, constant(4, both.type))
    return builder.and_(both, constant(15, both.type))


def _moved(builder: Any, stored: Any, distance: int) -> Any:
    """Emit instructions that shift bytes left by `distance` bits (right if negative)."""
    if distance >= 0:
        return builder.shl(stored, constant(distance, stored.type))
    return builder.lshr(stored, constant(-distance, stored.type))


class Q4_K(_K4):
    """Decodes blocks with eight parts of 32 four-bit integers."""

    codes = tuple(range(16))
    groups = tuple(
        NibbleGroup(
            16 + LANES * number, 4 * (number // 2) + number % 2, 4 * (number // 2) + 2 + number % 2
        )
        for number in range(_PARTS)
    )

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode a part (32 integers) of each block to int8."""
        return _pair_nibbles(builder, blocks, 16, part)


class Q5_K(_K4):
    """Decodes blocks with eight parts of 32 five-bit integers.

    A block stores the fifth bits separately from the low four bits.
    """

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode a part (32 integers) of each block to int8."""
        low = _pair_nibbles(builder, blocks, 48, part)
        # Move bit `part` to bit 4.
        fifth = _moved(builder, load_rows(builder, blocks, 16), 4 - part)
        return builder.or_(low, builder.and_(fifth, constant(16, low.type)))


class Q6_K(Reader):
    """Decodes blocks of six-bit integers, scaled per block and per 16 integers.

    A number is computed as follows:

        number = (block's scale * scale of the 16 integers) * (integer - 32)
    """

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that compute one scale per 16 integers of each block."""
        vectors = []
        for block in blocks:
            small = builder.sitofp(builder.sext(load(builder, block, 192, NIBBLES), WORDS), NUMBERS)
            scale = spread(builder, scale_at(builder, block, 208), LANES)
            vectors.append(builder.fmul(scale, small))
        return Factors(_factors_of_blocks(builder, vectors), (), 1)

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode a part (32 integers) of each block to int8."""
        section, number = divmod(part, 4)
        low = load_rows(builder, blocks, 64 * section + number % 2 * PART)
        high = load_rows(builder, blocks, 128 + section * PART)
        if number >= 2:
            low = builder.lshr(low, constant(4, low.type))
        # Move the two bits that belong to `number` to bits 4 and 5.
        top = builder.and_(_moved(builder, high, 4 - 2 * number), constant(48, low.type))
        value = builder.or_(builder.and_(low, constant(15, low.type)), top)
        return builder.sub(value, constant(32, low.type))


class IQ4_XS(Reader):
    """Decodes blocks of indices into `IQ4_CODES`, scaled per block and per part.

    A part is 32 numbers. The scale of a part is a six-bit integer.

        number = (block's scale * (part's scale - 32)) * IQ4_CODES[index]
    """

    codes = IQ4_CODES
    groups = tuple(NibbleGroup(8 + LANES * part, 2 * part, 2 * part + 1) for part in range(_PARTS))

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that compute one scale per 32 numbers of each block."""
        vectors = [self._scales(builder, block) for block in blocks]
        return Factors(_factors_of_blocks(builder, vectors)[:_PARTS], (), 2)

    def _scales(self, builder: Any, block: Any) -> Any:
        """Emit instructions that compute the scales of a block's parts.

        The result is a vector whose lanes 0 to 7 contain these products:

            lane p = block's scale * (scale of part p - 32)
        """
        low = spread(builder, load(builder, block, 4, WORD), _PARTS)
        top = spread(builder, builder.zext(load(builder, block, 2, HALF), WORD), _PARTS)
        low = builder.lshr(low, ir.Constant(_EIGHT, [4 * part for part in range(_PARTS)]))
        top = builder.lshr(top, ir.Constant(_EIGHT, [2 * part for part in range(_PARTS)]))
        top = builder.shl(builder.and_(top, constant(3, _EIGHT)), constant(4, _EIGHT))
        value = builder.or_(builder.and_(low, constant(15, _EIGHT)), top)
        small = builder.sitofp(
            builder.sub(value, constant(32, _EIGHT)), ir.VectorType(ir.FloatType(), _PARTS)
        )
        scales = builder.fmul(spread(builder, scale_at(builder, block, 0), _PARTS), small)
        return pick(builder, scales, scales, list(range(LANES)))

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode a part (32 integers) of each block to int8."""
        indices = nibble_bytes(builder, blocks, 8 + part * LANES)
        return looked_up(builder, indices, self.codes)
