"""Define readers, which emit code that decodes the blocks of packed weights.

A part is 32 consecutive numbers of a row, and a half part is 16. For each block format, a reader
emits code that decodes integers, scales and minimums. The numbers of the row are then:

    number = scale * integer + minimum

The numbers are bit-identical to those of the `gguf` package, which multiplies and then adds. In
formats with a minimum, scales have at most 17 bits and integers at most 5, so their products are
exact. A fused multiply-add therefore returns the same number as a multiplication followed by an
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

LANES = 16  # numbers in half a part
INDEX, BYTE, HALF, WORD = (ir.IntType(bits) for bits in (64, 8, 16, 32))
BYTES, HALVES = ir.VectorType(BYTE, PART), ir.VectorType(HALF, PART)
WORDS, NUMBERS = ir.VectorType(WORD, LANES), ir.VectorType(ir.FloatType(), LANES)
NIBBLES = ir.VectorType(BYTE, LANES)
# ggml's `kvalues_iq4nl`: decoded values of the integers in IQ4_NL and IQ4_XS.
IQ4_CODES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def plus(builder: Any, address: Any, distance: int) -> Any:
    """Emit an instruction that adds a constant number of bytes to an address."""
    return builder.add(address, ir.Constant(INDEX, distance)) if distance else address


def load(builder: Any, block: Any, offset: int, kind: Any) -> Any:
    """Emit instructions that load a value of LLVM type `kind` from a block."""
    return builder.load(pointer(builder, plus(builder, block, offset), kind), align=1)


def load_rows(builder: Any, blocks: Sequence[Any], offset: int, kind: Any = BYTES) -> Any:
    """Emit instructions that load a vector from each of one or two blocks.

    The result is the concatenation of the vectors, which have the LLVM type `kind`.
    """
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
    """Emit an instruction that concatenates two vectors."""
    return pick(builder, first, second, list(range(2 * first.type.count)))


def scale_at(builder: Any, block: Any, offset: int) -> Any:
    """Emit instructions that load a float16 scale and convert it to float32."""
    return builder.fpext(load(builder, block, offset, ir.HalfType()), ir.FloatType())


def first_halves(builder: Any, blocks: Sequence[Any], count: int) -> Any:
    """Emit instructions that load the float16 numbers at the start of each block.

    Integer instructions gather the numbers, so the vector units stay free for other work.

    Args:
        builder: LLVM builder.
        blocks: Addresses of the blocks.
        count: Number of float16 numbers per block, 1 or 2.
    Returns:
        Float32 vector that begins with the numbers of the first block, then those of the second,
        and so on.
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
    """Emit instructions that split 16 bytes of each block into 32 four-bit integers.

    For each block, the integers in the low four bits precede those in the high four bits.

    Args:
        builder: LLVM builder.
        blocks: Addresses of the blocks.
        offset: Offset of the 16 bytes in each block.
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
    """Two half parts (16 four-bit integers each) that share the same 16 bytes.

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
        codes: Decoded value of each four-bit integer. Empty if integers have more than four bits.
        groups: Locations of the four-bit integers in a block.
    """

    codes: tuple[int, ...] = ()
    groups: tuple[NibbleGroup, ...] = ()

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that load the scales and minimums of blocks.

        Args:
            builder: LLVM builder.
            blocks: Addresses of the blocks.
        """
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
    """Base class of readers for blocks that start with a float16 scale."""

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that load the scale of each block."""
        scales = first_halves(builder, blocks, 1)
        return Factors((Factor(scales, tuple(range(len(blocks)))),), (), 2)


class _Shifted(Reader):
    """Base class of readers for blocks that start with a float16 scale and minimum."""

    def factors(self, builder: Any, blocks: Sequence[Any]) -> Factors:
        """Emit instructions that load the scale and the minimum of each block."""
        both, count = first_halves(builder, blocks, 2), 2 * len(blocks)
        scale, minimum = (Factor(both, tuple(range(first, count, 2))) for first in (0, 1))
        return Factors((scale,), (minimum,), 2)


def _with_fifth_bits(builder: Any, blocks: Sequence[Any], bits: int, nibbles: int) -> Any:
    """Emit instructions that load 32 five-bit integers from each block.

    In each block, the offset of the 32-bit word that contains the fifth bits is `bits`. The offset
    of the 16 bytes that contain the low four bits is `nibbles`.
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
    """Decodes blocks with a scale and 32 integers from -16 to 15, stored in five bits."""

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        values = _with_fifth_bits(builder, blocks, 2, 6)
        return builder.sub(values, constant(16, values.type))


class Q5_1(_Shifted):
    """Decodes blocks with a scale, a minimum and 32 five-bit integers.

    A block stores the fifth bits separately from the low four bits.
    """

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        return _with_fifth_bits(builder, blocks, 4, 8)


class Q8_0(_Scaled):
    """Decodes blocks with a scale and 32 signed eight-bit integers."""

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        return load_rows(builder, blocks, HALF_BYTES)


class IQ4_NL(_Scaled):
    """Decodes blocks with a scale and 32 four-bit indices into `IQ4_CODES`."""

    codes, groups = IQ4_CODES, (NibbleGroup(2, 0, 1),)

    def integers(self, builder: Any, blocks: Sequence[Any], part: int) -> Any:
        """Emit instructions that decode one part of each block to 32 signed bytes."""
        return looked_up(builder, nibble_bytes(builder, blocks, 2), self.codes)


class PlainReader:
    """Emits code that loads float numbers, which have no scale or minimum.

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
