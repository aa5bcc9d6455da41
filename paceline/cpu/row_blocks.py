"""Pack rows in blocks of four, as the operations in `avx512_dot` require.

A chunk is 16 bytes of a row. A block contains the chunks of four rows, for example a, b, c and d,
in this order:

    first chunks:   a, b, c, d
    second chunks:  a, b, c, d
    ...
"""

from __future__ import annotations

from paceline.cpu import avx512_dot
from paceline.cpu.avx512_dot import CHUNK, ROWS
from paceline.util.compiled import inlined


@inlined
def count_blocks(num_rows: int) -> int:
    """Return the number of blocks that `num_rows` rows require."""
    return (num_rows + ROWS - 1) // ROWS


@inlined
def packed_row(packed: int, row: int, row_bytes: int) -> int:
    """Return the address of a row's first chunk in the packed blocks.

    Args:
        packed: Address of the packed blocks.
        row: Index of the row.
        row_bytes: Size of a row in bytes, a multiple of 16.
    """
    return packed + row // ROWS * ROWS * row_bytes + row % ROWS * CHUNK


@inlined
def pack_row(source: int, target: int, row_bytes: int) -> None:
    """Copy a row into a block, chunk by chunk.

    Args:
        source: Address of the row.
        target: Address of the row's first chunk in the block, from `packed_row`.
        row_bytes: Size of the row in bytes, a multiple of 16.
    """
    for offset in range(0, row_bytes, CHUNK):
        avx512_dot.copy_chunk(source + offset, target + offset * ROWS)


@inlined
def even_share(rest: int, groups: int) -> int:
    """Divide items into nearly equal groups, and return the size of the first group.

    Args:
        rest: Number of items.
        groups: Number of groups.
    """
    return (rest + groups - 1) // groups
