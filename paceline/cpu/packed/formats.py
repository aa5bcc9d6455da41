"""Look up the block size and the reader of each block format."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.core import types

from paceline.backend.block_formats import BLOCK_FORMATS, BlockFormat
from paceline.cpu.emit import Emit
from paceline.cpu.linear.unpack_call import PART
from paceline.cpu.packed import reading, super_blocks
from paceline.cpu.packed.reading import PlainReader, Reader

_READERS: dict[str, Reader | PlainReader] = {
    "F32": reading.F32,
    "F16": reading.F16,
    "Q4_0": reading.Q4_0(),
    "Q4_1": reading.Q4_1(),
    "Q5_0": reading.Q5_0(),
    "Q5_1": reading.Q5_1(),
    "Q8_0": reading.Q8_0(),
    "Q4_K": super_blocks.Q4_K(),
    "Q5_K": super_blocks.Q5_K(),
    "Q6_K": super_blocks.Q6_K(),
    "IQ4_NL": reading.IQ4_NL(),
    "IQ4_XS": super_blocks.IQ4_XS(),
}


class BlockLayout(NamedTuple):
    """The reader of a block format, and the sizes of a block.

    Attributes:
        reader: Reader, which emits the code that decodes a block.
        parts: Number of parts in a block. A part is 32 numbers.
        bytes: Size of a block in bytes.
    """

    reader: Reader | PlainReader
    parts: int
    bytes: int

    @staticmethod
    def of(block_format: BlockFormat) -> BlockLayout:
        """Return the layout of a format; for F16 and F32, a block is 32 numbers."""
        numbers = max(block_format.numbers, PART)
        return BlockLayout(
            _READERS[block_format.name], numbers // PART, block_format.row_bytes(numbers)
        )


def of_format(emit: Emit, type_id: Any, *operands: Any) -> Any:
    """Return the signature and the code generator of a numba intrinsic for a format.

    An intrinsic is a function for which numba emits LLVM instructions. Every intrinsic must return
    this pair.

    Args:
        emit: Emitter. Its arguments are an LLVM builder, the `BlockLayout` and the operands.
        type_id: Numba type of the format's id, which must be a compile-time constant.
        operands: Numba types of the operands.
    """
    blocks = BlockLayout.of(BLOCK_FORMATS[type_id.literal_value])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit(builder, blocks, *values[1:])
        return context.get_dummy_value()

    return types.void(type_id, *operands), generate
