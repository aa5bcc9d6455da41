"""Emit code that decodes blocks of 256 values, with separate scales for each part."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from paceline.cpu.emit import pick, spread
from paceline.cpu.linear.unpack_call import PART
from paceline.cpu.packed.reading import (
    BYTE,
    BYTES,
    HALF,
    HALVES,
    IQ4_CODES,
    LANES,
    NUMBERS,
    WORD,
    WORDS,
    Reader,
    constant,
    halves_of,
    load,
    nibble_halves,
    scale_at,
)

_PARTS = 8  # parts of a block
_FOUR, _SIXTEEN = ir.VectorType(WORD, 4), ir.VectorType(BYTE, LANES)


def _lane(builder: Any, vector: Any, lane: int) -> Any:
    """Emit 16 copies of one lane of a vector."""
    return pick(builder, vector, vector, [lane] * LANES)


class _K4(Reader):
    """Decodes blocks with a scale, a minimum, and six-bit factors of both per part.

    number = (scale * part's scale) * value - (minimum * part's minimum)
    """

    def scales(self, builder: Any, block: Any) -> Any:
        """Emit the scales of the parts in lanes 0 to 7, and the minimums in lanes 8 to 15."""
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
        small = builder.uitofp(builder.zext(builder.bitcast(packed, _SIXTEEN), WORDS), NUMBERS)
        scale, minimum = (
            spread(builder, scale_at(builder, block, offset), LANES) for offset in (0, 2)
        )
        lanes = [*range(LANES // 2), *range(LANES, LANES + LANES // 2)]
        return builder.fmul(pick(builder, scale, minimum, lanes), small)

    def numbers(self, builder: Any, scales: Any, values: Any, part: int, half: int) -> Any:
        """Emit the scaled values, with the part's minimum subtracted."""
        scaled = builder.fmul(_lane(builder, scales, part), values)
        return builder.fsub(scaled, _lane(builder, scales, _PARTS + part))


def _pair_nibbles(builder: Any, block: Any, offset: int, part: int) -> Any:
    """Emit the nibbles of a part, which shares its 32 bytes with another part.

    The other bits of each lane are undefined.
    """
    both = builder.zext(load(builder, block, offset + part // 2 * PART, BYTES), HALVES)
    return builder.lshr(both, constant(4, HALVES)) if part % 2 else both


class Q4_K(_K4):
    """Decodes integers of 4 bits."""

    num_levels, codes = 16, tuple(range(16))

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        return _pair_nibbles(builder, block, 16, part)


class Q5_K(_K4):
    """Decodes integers of 5 bits, whose fifth bits are stored separately."""

    num_levels, codes = 32, tuple(range(32))

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        low = builder.and_(_pair_nibbles(builder, block, 48, part), constant(15, HALVES))
        fifth = builder.zext(load(builder, block, 16, BYTES), HALVES)
        shift = 4 - part  # bit `part` becomes bit 4
        moved = (
            builder.shl(fifth, constant(shift, HALVES))
            if shift >= 0
            else builder.lshr(fifth, constant(-shift, HALVES))
        )
        return builder.or_(low, builder.and_(moved, constant(16, HALVES)))


class Q6_K(Reader):
    """Decodes integers of 6 bits, minus 32, with one scale per 16 integers.

    number = (scale * half part's scale) * value
    """

    def scales(self, builder: Any, block: Any) -> Any:
        """Emit the scales of the 16 half parts, in lanes 0 to 15."""
        small = builder.sitofp(builder.sext(load(builder, block, 192, _SIXTEEN), WORDS), NUMBERS)
        return builder.fmul(spread(builder, scale_at(builder, block, 208), LANES), small)

    def values(self, builder: Any, block: Any, part: int) -> list[Any]:
        """Emit the decoded integers of a part."""
        section, number = divmod(part, 4)
        low = load(builder, block, 64 * section + number % 2 * PART, BYTES)
        high = load(builder, block, 128 + section * PART, BYTES)
        if number >= 2:
            low = builder.lshr(low, constant(4, BYTES))
        shift = 4 - 2 * number  # both bits of `number` become bits 4 and 5
        moved = (
            builder.shl(high, constant(shift, BYTES))
            if shift >= 0
            else builder.lshr(high, constant(-shift, BYTES))
        )
        value = builder.or_(
            builder.and_(low, constant(15, BYTES)), builder.and_(moved, constant(48, BYTES))
        )
        signed = builder.sub(value, constant(32, BYTES))
        return [builder.sext(half, WORDS) for half in halves_of(builder, signed)]

    def numbers(self, builder: Any, scales: Any, values: Any, part: int, half: int) -> Any:
        """Emit the values, scaled by the scale of their half part."""
        return builder.fmul(_lane(builder, scales, 2 * part + half), values)


class IQ4_XS(Reader):
    """Decodes indices into `IQ4_CODES`, with a scale of 6 bits, minus 32, per part.

    number = (scale * part's scale) * code
    """

    num_levels, codes = 16, IQ4_CODES

    def scales(self, builder: Any, block: Any) -> Any:
        """Emit the scales of the eight parts, in lanes 0 to 7."""
        eight = ir.VectorType(WORD, _PARTS)
        low = spread(builder, load(builder, block, 4, WORD), _PARTS)
        top = spread(builder, builder.zext(load(builder, block, 2, HALF), WORD), _PARTS)
        low = builder.lshr(low, ir.Constant(eight, [4 * part for part in range(_PARTS)]))
        top = builder.lshr(top, ir.Constant(eight, [2 * part for part in range(_PARTS)]))
        top = builder.shl(builder.and_(top, constant(3, eight)), constant(4, eight))
        value = builder.or_(builder.and_(low, constant(15, eight)), top)
        small = builder.sitofp(
            builder.sub(value, constant(32, eight)), ir.VectorType(ir.FloatType(), _PARTS)
        )
        return builder.fmul(spread(builder, scale_at(builder, block, 0), _PARTS), small)

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        return nibble_halves(builder, block, 8 + part * LANES)

    def numbers(self, builder: Any, scales: Any, values: Any, part: int, half: int) -> Any:
        """Emit the values, scaled by the scale of their part."""
        return builder.fmul(_lane(builder, scales, part), values)
