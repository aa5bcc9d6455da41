"""Pack rows in blocks of four, as the operations in `avx512_dot` require.

A chunk is 16 bytes of a row. In a block, chunk k of all four rows precedes chunk k + 1 of the first
row.
"""

from __future__ import annotations

from paceline.cpu import avx512_dot
from paceline.cpu.avx512_dot import CHUNK, ROWS
from paceline.util.compiled import inlined


@inlined
def count_blocks(num_rows: int) -> int:
    """Return the number of blocks that `num_rows` rows need."""
    return (num_rows + ROWS - 1) // ROWS


@inlined
def packed_row(packed: int, row: int, row_bytes: int) -> int:
    """Return the address of a row's first chunk (16 bytes) in the packed blocks."""
    return packed + row // ROWS * ROWS * row_bytes + row % ROWS * CHUNK


@inlined
def pack_row(source: int, target: int, row_bytes: int) -> None:
    """Copy a row, chunk by chunk, to an address that `packed_row` returned."""
    for offset in range(0, row_bytes, CHUNK):
        avx512_dot.copy_chunk(source + offset, target + offset * ROWS)


@inlined
def even_share(rest: int, groups: int) -> int:
    """Return rest / groups, rounded up: the size of the first of nearly equal groups."""
    return (rest + groups - 1) // groups
