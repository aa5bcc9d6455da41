"""Define the base class of readers, which emit code that decodes blocks.

A part is 32 consecutive numbers of a row, and a half part is 16. A reader emits code that decodes a
part of a block to integers, and that reads the two `factors` in the formula

    number = scale * integer + minimum

The numbers are bit-identical to those of the `gguf` package, which multiplies, then adds. In
formats with a minimum, scales have at most 17 bits and integers at most 5, so their products are
exact. A fused multiply-add therefore gives the same result as a multiplication followed by an
addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from paceline.cpu.emit import pick, pointer
from paceline.cpu.linear.unpack_call import PART
from paceline.cpu.memory import HALF_BYTES
from paceline.cpu.packed.factors import Factor, Factors
from paceline.util.machine import instruction_flags, on_x86

LANES = 16  # numbers of half a part
INDEX, BYTE, HALF, WORD = (ir.IntType(bits) for bits in (64, 8, 16, 32))
BYTES, HALVES = ir.VectorType(BYTE, PART), ir.VectorType(HALF, PART)
WORDS, NUMBERS = ir.VectorType(WORD, LANES), ir.VectorType(ir.FloatType(), LANES)
NIBBLES = ir.VectorType(BYTE, LANES)
# ggml's `kvalues_iq4nl`: decoded values of the integers in IQ4_NL and IQ4_XS.
IQ4_CODES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def plus(builder: Any, address: Any, distance: int) -> Any:
    """Emit an instruction that computes the address `distance` bytes after `address`."""
    return builder.add(address, ir.Constant(INDEX, distance)) if distance else address


def load(builder: Any, block: Any, offset: int, kind: Any) -> Any:
    """Emit instructions that load a value of LLVM type `kind` at a byte offset."""
    return builder.load(pointer(builder, plus(builder, block, offset), kind), align=1)


def load_rows(builder: Any, blocks: Sequence[Any], offset: int, kind: Any = BYTES) -> Any:
    """Emit instructions that load one vector per block (one or two), and join them."""
    vectors = [load(builder, block, offset, kind) for block in blocks]
    return vectors[0] if len(vectors) == 1 else join(builder, *vectors)


def constant(number: int, kind: Any) -> Any:
    """Return a constant vector with the same integer in all lanes."""
    return ir.Constant(kind, [number] * kind.count)


def halves_of(builder: Any, vector: Any) -> list[Any]:
    """Emit instructions that split a vector into its two halves."""
    half = vector.type.count // 2
    return [pick(builder, vector, vector, list(range(first, first + half))) for first in (0, half)]


def join(builder: Any, first: Any, second: Any) -> Any:
    """Emit an instruction that joins two vectors into one."""
    return pick(builder, first, second, list(range(2 * first.type.count)))


def scale_at(builder: Any, block: Any, offset: int) -> Any:
    """Emit instructions that convert a float16 number in a block to float32."""
    return builder.fpext(load(builder, block, offset, ir.HalfType()), ir.FloatType())


def first_halves(builder: Any, blocks: Sequence[Any], count: int) -> Any:
    """Emit instructions that load the first `count` numbers of each block as float32.

    The numbers are stored as float16; `count` is 1 or 2.

    Integer instructions gather the numbers, so the vector units stay free for other work.
    """
    size = HALF_BYTES * 8 * count
    per_word = INDEX.width // size
    vector = ir.Constant(ir.VectorType(INDEX, -(-len(blocks) // per_word)), ir.Undefined)
    for lane in range(vector.type.count):
        word = ir.Constant(INDEX, 0)
        for number, block in enumerate(blocks[lane * per_word : (lane + 1) * per_word]):
            stored = builder.zext(load(builder, block, 0, ir.IntType(size)), INDEX)
            word = builder.or_(word, builder.shl(stored, ir.Constant(INDEX, number * size)))
        vector = builder.insert_element(vector, word, ir.Constant(WORD, lane))
    halves = 4 * vector.type.count
    numbers = builder.bitcast(vector, ir.VectorType(ir.HalfType(), halves))
    return builder.fpext(numbers, ir.VectorType(ir.FloatType(), halves))


def nibble_bytes(builder: Any, blocks: Sequence[Any], offset: int) -> Any:
    """Emit instructions that split 16 bytes per block into 32 integers.

    For each block, the low halves of the bytes precede the high halves.
    """
    stored = load_rows(builder, blocks, offset, NIBBLES)
    low = builder.and_(stored, constant(15, stored.type))
    high = builder.lshr(stored, constant(4, stored.type))
    count = stored.type.count
    lanes = [
        first + lane + half
        for first in range(0, count, LANES)
        for half in (0, count)
        for lane in range(LANES)
    ]
    return pick(builder, low, high, lanes)


class NibbleGroup(NamedTuple):
    """The location of two half parts (16 four-bit integers each) that share 16 bytes.

    Attributes:
        offset: Offset of the bytes in the block.
        low: Index of the half part that is stored in the low four bits.
        high: Index of the half part that is stored in the high four bits.
    """

    offset: int
    low: int
    high: int


class Reader:
    """Emits code that decodes blocks of one format.

    Attributes:
        codes: Decoded value of each four-bit integer; empty if integers have more than four bits.
        groups: Locations of the four-bit integers.
    """

    codes: tuple[int, ...] = ()
    groups: tuple[NibbleGroup, ...] = ()

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that read the scales and minima of blocks at given addresses."""
        raise NotImplementedError

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes.

        Args:
            builder: LLVM builder.
            blocks: Addresses of one or two blocks.
            part: Index of the part.
        """
        raise NotImplementedError


def looked_up(builder: Any, indices: Any, codes: tuple[int, ...]) -> Any:
    """Emit instructions that replace 32 one-byte indices with entries of `codes`."""
    table = ir.Constant(NIBBLES, [code % 256 for code in codes])
    if on_x86() and "ssse3" in instruction_flags():
        kind = ir.FunctionType(NIBBLES, [NIBBLES] * 2)
        shuffle = builder.module.declare_intrinsic("llvm.x86.ssse3.pshuf.b.128", (), kind)
        first, second = (
            builder.call(shuffle, [table, half]) for half in halves_of(builder, indices)
        )
        return join(builder, first, second)
    entries = ir.Constant(BYTES, ir.Undefined)
    for lane in range(PART):
        number = ir.Constant(WORD, lane)
        entry = builder.extract_element(table, builder.extract_element(indices, number))
        entries = builder.insert_element(entries, entry, number)
    return entries


class _Scaled(Reader):
    """Decodes blocks that start with a scale."""

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that read the scale of each block."""
        scales = first_halves(builder, blocks, 1)
        return Factors((Factor(scales, tuple(range(len(blocks)))),), (), 2)


class _Shifted(Reader):
    """Decodes blocks that start with a scale and a minimum."""

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that read the scale and the minimum of each block."""
        both, count = first_halves(builder, blocks, 2), 2 * len(blocks)
        scale, minimum = (Factor(both, tuple(range(first, count, 2))) for first in (0, 1))
        return Factors((scale,), (minimum,), 2)


def _with_fifth_bits(builder: Any, blocks: Sequence[Any], bits: int, nibbles: int) -> Any:
    """Emit instructions that load 32 five-bit integers per block.

    The low four bits begin at byte `nibbles` of a block. The fifth bits form a 32-bit word at byte
    `bits`.
    """
    low = nibble_bytes(builder, blocks, nibbles)
    words = load_rows(builder, blocks, bits, ir.VectorType(WORD, 1))
    flags = builder.bitcast(words, ir.VectorType(ir.IntType(1), low.type.count))
    fifth = builder.select(flags, constant(16, low.type), constant(0, low.type))
    return builder.or_(low, fifth)


class Q4_0(_Scaled):
    """Decodes blocks with a scale and 32 integers from -8 to 7, stored in four bits."""

    codes, groups = tuple(range(-8, 8)), (NibbleGroup(2, 0, 1),)

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        values = nibble_bytes(builder, blocks, 2)
        return builder.sub(values, constant(8, values.type))


class Q4_1(_Shifted):
    """Decodes blocks with a scale, a minimum and 32 four-bit integers."""

    codes, groups = tuple(range(16)), (NibbleGroup(4, 0, 1),)

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        return nibble_bytes(builder, blocks, 4)


class Q5_0(_Scaled):
    """Decodes blocks with a scale and 32 integers from -16 to 15, in five bits each."""

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        values = _with_fifth_bits(builder, blocks, 2, 6)
        return builder.sub(values, constant(16, values.type))


class Q5_1(_Shifted):
    """Decodes blocks with a scale, a minimum and 32 five-bit integers.

    The fifth bits are stored separately.
    """

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        return _with_fifth_bits(builder, blocks, 4, 8)


class Q8_0(_Scaled):
    """Decodes blocks with a scale and 32 eight-bit integers."""

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        return load_rows(builder, blocks, HALF_BYTES)


class IQ4_NL(_Scaled):
    """Decodes blocks with a scale and 32 indices into `IQ4_CODES`."""

    codes, groups = IQ4_CODES, (NibbleGroup(2, 0, 1),)

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        return looked_up(builder, nibble_bytes(builder, blocks, 2), self.codes)


class PlainReader:
    """Reads numbers that are not stored in blocks.

    Args:
        kind: LLVM type of a number.
        size: Size of a number in bytes.
    """

    def __init__(self, kind: Any, size: int) -> None:
        self._kind, self._size = ir.VectorType(kind, LANES), size

    def numbers(self, builder: Any, source: Any) -> list[Any]:
        """Emit instructions that load 32 numbers as two float32 vectors."""
        halves = [load(builder, source, first * self._size, self._kind) for first in (0, LANES)]
        if self._kind == NUMBERS:
            return halves
        return [builder.fpext(half, NUMBERS) for half in halves]


F32, F16 = PlainReader(ir.FloatType(), 4), PlainReader(ir.HalfType(), HALF_BYTES)
