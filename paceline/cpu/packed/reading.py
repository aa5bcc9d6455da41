"""Emit code that decodes blocks of 32 values; define the base class of readers.

A part consists of 32 consecutive values of a row. A reader decodes a part of a block to integers,
and converts the integers to values. It uses the same float32 operations as the `gguf` package.
Each operation rounds once, so the values are bit-identical.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from paceline.cpu.emit import pick, pointer, spread
from paceline.cpu.linear.unpack_call import PART
from paceline.cpu.memory import HALF_BYTES
from paceline.util.machine import instruction_flags, on_x86

LANES = 16  # numbers of half a part
INDEX, BYTE, HALF, WORD = (ir.IntType(bits) for bits in (64, 8, 16, 32))
BYTES, HALVES = ir.VectorType(BYTE, PART), ir.VectorType(HALF, PART)
WORDS, NUMBERS = ir.VectorType(WORD, LANES), ir.VectorType(ir.FloatType(), LANES)
_NIBBLES = ir.VectorType(BYTE, LANES)
# ggml's `kvalues_iq4nl`: decoded values of the integers in IQ4_NL and IQ4_XS.
IQ4_CODES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def plus(builder: Any, address: Any, distance: int) -> Any:
    """Emit the address `distance` bytes after `address`."""
    return builder.add(address, ir.Constant(INDEX, distance)) if distance else address


def load(builder: Any, block: Any, offset: int, kind: Any) -> Any:
    """Emit the load of a value of LLVM type `kind` at a byte offset."""
    return builder.load(pointer(builder, plus(builder, block, offset), kind), align=1)


def constant(number: int, kind: Any) -> Any:
    """Return a vector with one integer in all lanes."""
    return ir.Constant(kind, [number] * kind.count)


def halves_of(builder: Any, vector: Any) -> list[Any]:
    """Emit the two halves of a vector."""
    half = vector.type.count // 2
    return [pick(builder, vector, vector, list(range(first, first + half))) for first in (0, half)]


def scale_at(builder: Any, block: Any, offset: int) -> Any:
    """Emit code that converts a float16 number in a block to float32."""
    return builder.fpext(load(builder, block, offset, ir.HalfType()), ir.FloatType())


def scale_lanes(builder: Any, block: Any, offset: int) -> Any:
    """Emit code that copies a float16 number in a block to 16 float32 lanes."""
    copies = spread(builder, load(builder, block, offset, ir.HalfType()), LANES)
    return builder.fpext(copies, NUMBERS)


def nibble_halves(builder: Any, block: Any, offset: int) -> Any:
    """Emit the low four bits of 16 bytes, followed by the high four bits.

    The other bits of each lane are undefined.
    """
    low = builder.zext(load(builder, block, offset, _NIBBLES), ir.VectorType(HALF, LANES))
    high = builder.lshr(low, constant(4, low.type))
    return pick(builder, low, high, list(range(PART)))


class Reader:
    """Emits the code that decodes one block format.

    Attributes:
        num_levels: Number of different integers in a part, 16 or 32, if a look-up table of their
            values saves time. 0 means that each integer is converted.
        codes: Decoded value of each stored integer, in ascending order of the integers.
    """

    num_levels = 0
    codes: tuple[int, ...] = ()

    def scales(self, builder: Any, block: Any) -> Any:
        """Emit the scales of a block, in the form that `numbers` expects."""
        raise NotImplementedError

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the 32 stored integers of a part as 16-bit lanes.

        The other bits of each lane are undefined.
        """
        raise NotImplementedError

    def values(self, builder: Any, block: Any, part: int) -> list[Any]:
        """Emit the decoded integers of a part as two vectors of 32-bit lanes."""
        masked = builder.and_(
            self.indices(builder, block, part), constant(self.num_levels - 1, HALVES)
        )
        lowest = self.codes[0]
        if self.codes == tuple(range(lowest, lowest + self.num_levels)):
            plain = [builder.zext(half, WORDS) for half in halves_of(builder, masked)]
            return [builder.add(half, constant(lowest, WORDS)) for half in plain]
        return [_looked_up(builder, half, self.codes) for half in halves_of(builder, masked)]

    def numbers(self, builder: Any, scales: Any, values: Any, part: int, half: int) -> Any:
        """Emit the code that converts 16 decoded integers to the values they represent.

        Args:
            builder: LLVM builder.
            scales: Result of `scales`.
            values: Decoded integers of this half, as 16 float32 lanes.
            part: Index of the part in the block.
            half: 0 or 1.
        """
        raise NotImplementedError


def _looked_up(builder: Any, indices: Any, codes: tuple[int, ...]) -> Any:
    """Emit the look-up of 16 codes by index (below 16), as 32-bit lanes."""
    table = ir.Constant(_NIBBLES, [code % 256 for code in codes])
    narrow = builder.trunc(indices, _NIBBLES)
    if on_x86() and "ssse3" in instruction_flags():
        kind = ir.FunctionType(_NIBBLES, [_NIBBLES] * 2)
        shuffle = builder.module.declare_intrinsic("llvm.x86.ssse3.pshuf.b.128", (), kind)
        return builder.sext(builder.call(shuffle, [table, narrow]), WORDS)
    entries = ir.Constant(_NIBBLES, ir.Undefined)
    for lane in range(LANES):
        number = ir.Constant(WORD, lane)
        entry = builder.extract_element(table, builder.extract_element(narrow, number))
        entries = builder.insert_element(entries, entry, number)
    return builder.sext(entries, WORDS)


class _Scaled(Reader):
    """Decodes blocks with one scale: number = scale * value."""

    def scales(self, builder: Any, block: Any) -> Any:
        """Emit 16 copies of the block's scale."""
        return scale_lanes(builder, block, 0)

    def numbers(self, builder: Any, scales: Any, values: Any, part: int, half: int) -> Any:
        """Emit the scaled values."""
        return builder.fmul(scales, values)


class _Shifted(Reader):
    """Decodes blocks with a scale and a minimum: number = scale * value + minimum."""

    def scales(self, builder: Any, block: Any) -> Any:
        """Emit 16 copies of the block's scale, and 16 copies of its minimum."""
        return [scale_lanes(builder, block, offset) for offset in (0, HALF_BYTES)]

    def numbers(self, builder: Any, scales: Any, values: Any, part: int, half: int) -> Any:
        """Emit the scaled values, with the minimum added."""
        return builder.fadd(builder.fmul(scales[0], values), scales[1])


def _with_fifth_bits(builder: Any, block: Any, bits: int, nibbles: int) -> Any:
    """Emit nibbles, adding 16 where a bit is set in the 32-bit word at `bits`."""
    low = builder.and_(nibble_halves(builder, block, nibbles), constant(15, HALVES))
    flags = builder.bitcast(load(builder, block, bits, WORD), ir.VectorType(ir.IntType(1), PART))
    fifth = builder.select(flags, constant(16, HALVES), constant(0, HALVES))
    return builder.or_(low, fifth)


class Q4_0(_Scaled):
    """Decodes blocks with a scale and 32 integers of 4 bits, minus 8."""

    num_levels, codes = 16, tuple(range(-8, 8))

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        return nibble_halves(builder, block, 2)


class Q4_1(_Shifted):
    """Decodes blocks with a scale, a minimum and 32 integers of 4 bits."""

    num_levels, codes = 16, tuple(range(16))

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        return nibble_halves(builder, block, 4)


class Q5_0(_Scaled):
    """Decodes blocks with a scale, fifth bits and 32 integers of 4 bits, minus 16."""

    num_levels, codes = 32, tuple(range(-16, 16))

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        return _with_fifth_bits(builder, block, 2, 6)


class Q5_1(_Shifted):
    """Decodes blocks with a scale, a minimum, fifth bits and 32 integers of 4 bits."""

    num_levels, codes = 32, tuple(range(32))

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        return _with_fifth_bits(builder, block, 4, 8)


class Q8_0(_Scaled):
    """Decodes blocks with a scale and 32 integers of 8 bits."""

    def values(self, builder: Any, block: Any, part: int) -> list[Any]:
        """Emit the decoded integers of a part."""
        return [
            builder.sext(load(builder, block, 2 + first, _NIBBLES), WORDS) for first in (0, LANES)
        ]


class IQ4_NL(_Scaled):
    """Decodes blocks with a scale and 32 indices into `IQ4_CODES`."""

    num_levels, codes = 16, IQ4_CODES

    def indices(self, builder: Any, block: Any, part: int) -> Any:
        """Emit the stored integers of a part; other bits of each lane are undefined."""
        return nibble_halves(builder, block, 2)


class _PlainReader(Reader):
    """Reads numbers that are not stored in blocks, 32 at a time.

    Args:
        kind: LLVM type of a number.
        size: Size of a number in bytes.
    """

    def __init__(self, kind: Any, size: int) -> None:
        self._kind, self._size = ir.VectorType(kind, LANES), size

    def scales(self, builder: Any, block: Any) -> Any:
        """Return None, because plain numbers have no scale."""
        return None

    def values(self, builder: Any, block: Any, part: int) -> list[Any]:
        """Emit the load of a part's numbers, as two vectors."""
        return [load(builder, block, first * self._size, self._kind) for first in (0, LANES)]

    def numbers(self, builder: Any, scales: Any, values: Any, part: int, half: int) -> Any:
        """Return the values, which are already the stored numbers."""
        return values


F32, F16 = _PlainReader(ir.FloatType(), 4), _PlainReader(ir.HalfType(), HALF_BYTES)
