"""One shard as a row of addresses and sizes: how compiled code reads it, and never believes what is
damaged.

The documents (3 1 2) and (1 2), with the separator 9:

    text           3 1 2 9 1 2 9          text_size 7
    suffix_array   1 4 2 5 0              suffix_count 5: there begin "1 2 9 ...", "1 2 9", "2 9
    ...", "2 9" and "3 1 2 9 ..."

The ranks of the suffixes that begin with "1 2" are [0, 2). Two bisections find them: one among the
pivots (every SUFFIXES_PER_PIVOT-th suffix, its first tokens as one number), one in the part of the
suffix array between two pivots.

Every page (4 KiB) is compared with its checksum before its first use, and every position with the
size of the text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.hashing import PAGE, xxh64
from paceline.util.compiled import (
    kernel,
    load_int32,
    load_uint8,
    load_uint16,
    load_uint32,
    load_uint64,
    record_dtype,
    store_uint8,
)


class ShardRow(NamedTuple):
    """One shard in the table of a snapshot: addresses of its parts, and sizes."""

    pages: int  # address of page 0
    # address of one byte for each page, 1 = found good; 0 = the shard is in memory, nothing to
    # check
    seen: int
    checksums: int  # address of the checksum of each page
    text: int  # address of its tokens and separators
    text_size: int  # how many these are
    token_bytes: int  # 2 or 4
    # address of the positions in the text, in the order of the suffixes that begin there (int32)
    suffix_array: int
    suffix_count: int  # how many these are
    # address of the first tokens of every SUFFIXES_PER_PIVOT-th suffix, as one number (uint64)
    pivots: int
    separator: int  # what stands in the text after each document
    vocab_size: int  # tokens are below it


SHARD = record_dtype(ShardRow)
# every SUFFIXES_PER_PIVOT-th suffix has a pivot: its first tokens as one number, for the upper
# steps of a search
SUFFIXES_PER_PIVOT = 64
PIVOT_BYTES = 8
DAMAGED = -1
_LESS, _EQUAL, _MORE, _BAD = -1, 0, 1, 2


@kernel
def within(
    row: ShardRow, low: int, high: int, depth: int, ids: NDArray[np.int64], begin: int, end: int
) -> tuple[int, int]:
    """Find the ranks in [low, high) whose suffix has ids[begin:end] after `depth` tokens; (0, 0)
    if none, (DAMAGED, 0).
    """
    low = edge(row, low, high, depth, ids, begin, end, False)
    if low < 0:
        return DAMAGED, 0
    top, probe, step = low, low, 1
    while probe < high:  # most ranges are short: their end is looked for from their start
        order = _compare(row, probe, depth, ids, begin, end)
        if order == _BAD:
            return DAMAGED, 0
        if order != _EQUAL:
            high = probe
            break
        top, probe, step = probe + 1, probe + step, 2 * step
    top = edge(row, top, high, depth, ids, begin, end, True)
    if top < 0:
        return DAMAGED, 0
    return (low, top) if low < top else (0, 0)


@kernel
def edge(
    row: ShardRow,
    low: int,
    high: int,
    depth: int,
    ids: NDArray[np.int64],
    begin: int,
    end: int,
    after: bool,
) -> int:
    """Find the first rank in [low, high] whose suffix is not below the ids (or, `after`, is
    above them); DAMAGED.
    """
    while low < high:
        middle = (low + high) // 2
        order = _compare(row, middle, depth, ids, begin, end)
        if order == _BAD:
            return DAMAGED
        if order == _LESS or (after and order == _EQUAL):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _compare(
    row: ShardRow, rank: int, depth: int, ids: NDArray[np.int64], begin: int, end: int
) -> int:
    """Compare the suffix with this rank, from `depth` on, with ids[begin:end], as far as those
    go: _LESS ... _BAD.
    """
    position = suffix(row, rank)
    if position < 0:
        return _BAD
    position += depth
    size = min(end - begin, row.text_size - position)
    if size > 0 and not text_sound(row, position, size):
        return _BAD
    for offset in range(size):
        token = token_at(row, position + offset)
        if token != ids[begin + offset]:
            return _LESS if token < ids[begin + offset] else _MORE
    return _EQUAL if size == end - begin else _MORE


@kernel
def among_pivots(row: ShardRow, ids: NDArray[np.int64], begin: int, end: int) -> tuple[int, int]:
    """Count the pivots below all suffixes that begin with ids[begin:end], as far as pivots tell,
    and those that are not above.

    (DAMAGED, 0) where the shard cannot be believed.
    """
    bits = 8 * row.token_bytes
    least, most = np.uint64(0), np.uint64(0)
    for offset in range(64 // bits):
        inside = begin + offset < end
        token = ids[begin + offset] if inside else 0
        least = (least << np.uint64(bits)) | np.uint64(token)
        most = (most << np.uint64(bits)) | np.uint64(token if inside else (1 << bits) - 1)
    count = (row.suffix_count + SUFFIXES_PER_PIVOT - 1) // SUFFIXES_PER_PIVOT
    first = _first_pivot(row, 0, count, least, False)
    low, probe, step = first, first, 1
    while (
        low >= 0 and probe < count
    ):  # most ranges hold few pivots: their end is looked for from their start
        order = _pivot_order(row, probe, most)
        if order == _BAD:
            return DAMAGED, 0
        if order == _MORE:
            count = probe
            break
        low, probe, step = probe + 1, probe + step, 2 * step
    last = _first_pivot(row, low, count, most, True) if low >= 0 else DAMAGED
    return (first, last) if last >= 0 else (DAMAGED, 0)


@kernel
def _first_pivot(row: ShardRow, low: int, high: int, key: np.uint64, after: bool) -> int:
    """Find the first pivot in [low, high] that is not below `key` (or, `after`, is above it);
    DAMAGED.
    """
    while low < high:
        middle = (low + high) // 2
        order = _pivot_order(row, middle, key)
        if order == _BAD:
            return DAMAGED
        if order == _LESS or (after and order == _EQUAL):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _pivot_order(row: ShardRow, index: int, key: np.uint64) -> int:
    """Compare a pivot with a key: _LESS, _EQUAL, _MORE or _BAD."""
    address = row.pivots + 8 * index
    if not _sound(row, address):
        return _BAD
    pivot = load_uint64(address)
    return _LESS if pivot < key else _EQUAL if pivot == key else _MORE


@kernel
def suffix(row: ShardRow, rank: int) -> int:
    """Return the position in the text of the suffix with this rank; DAMAGED."""
    address = row.suffix_array + 4 * rank
    if rank < 0 or rank >= row.suffix_count or not _sound(row, address):
        return DAMAGED
    position = int(load_int32(address))
    return position if 0 <= position < row.text_size else DAMAGED


@kernel
def token_at(row: ShardRow, position: int) -> int:
    """Return the token at a position whose page is good."""
    if row.token_bytes == 2:
        return int(load_uint16(row.text + 2 * position))
    return int(load_uint32(row.text + 4 * position))


@kernel
def text_sound(row: ShardRow, position: int, tokens: int) -> bool:
    """Whether the pages that hold `tokens` tokens, 1 to SORTED, from `position` on are good: one
    page or two.
    """
    width = row.token_bytes
    return _sound(row, row.text + width * position) and _sound(
        row, row.text + width * (position + tokens - 1)
    )


@kernel
def _sound(row: ShardRow, address: int) -> bool:
    """Whether the page of `address` has the checksum it should have; looked at once."""
    if row.seen == 0:
        return True
    page = (address - row.pages) // PAGE
    if load_uint8(row.seen + page):
        return True
    if xxh64(row.pages + page * PAGE, PAGE) != load_uint64(row.checksums + 8 * page):
        return False
    store_uint8(row.seen + page, np.uint8(1))
    return True
