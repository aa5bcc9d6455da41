"""Describe the block formats of packed weights in GGUF files.

A GGUF file stores each row of a weight as a sequence of blocks. A block stores a few numbers as
small integers, together with the scales that convert these integers back to numbers. ggml defines
the layouts (`ggml-common.h`).
"""

from __future__ import annotations

from typing import NamedTuple


class BlockFormat(NamedTuple):
    """Name and sizes of a block format.

    Attributes:
        name: Name in ggml, such as "Q4_K".
        type_id: Id of the format in GGUF files.
        numbers: Number of values per block.
        bytes: Number of bytes per block.
    """

    name: str
    type_id: int
    numbers: int
    bytes: int

    def row_bytes(self, inner: int) -> int:
        """Return the size in bytes of a row of `inner` numbers.

        The numbers must fill whole blocks.
        """
        return inner // self.numbers * self.bytes


F32, F16, BF16 = (
    BlockFormat("F32", 0, 1, 4),
    BlockFormat("F16", 1, 1, 2),
    BlockFormat("BF16", 30, 1, 2),
)
BLOCK_FORMATS = {
    block_format.type_id: block_format
    for block_format in (
        F32,
        F16,
        BlockFormat("Q4_0", 2, 32, 18),
        BlockFormat("Q4_1", 3, 32, 20),
        BlockFormat("Q5_0", 6, 32, 22),
        BlockFormat("Q5_1", 7, 32, 24),
        BlockFormat("Q8_0", 8, 32, 34),
        BlockFormat("Q4_K", 12, 256, 144),
        BlockFormat("Q5_K", 13, 256, 176),
        BlockFormat("Q6_K", 14, 256, 210),
        BlockFormat("IQ4_NL", 20, 32, 18),
        BlockFormat("IQ4_XS", 23, 256, 136),
        BF16,
    )
}
