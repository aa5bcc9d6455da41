"""Read a shard in compiled code, checking every page before its first use.

For example, consider the documents (3 1 2) and (1 2), with the separator 9:

    text: 3 1 2 9 1 2 9, so text_size is 7.
    suffix_array: 1 4 2 5 0, so suffix_count is 5.
    The suffixes at these positions: "1 2 9 ...", "1 2 9", "2 9 ...", "2 9" and "3 1 2 9 ...".

The suffixes that begin with "1 2" have the ranks [0, 2). Two binary searches find them. The first
search uses the pivots: every SUFFIXES_PER_PIVOT-th suffix has a pivot, which packs the first tokens
of the suffix into one number. The second search covers the part of the suffix array between two
pivots.

Before the first use of a page (4 KiB), the code compares the page with its checksum. It also checks
that every position in the suffix array lies within the text.
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
    """Memory addresses and sizes of one shard, as a record in a snapshot's table.

    Attributes:
        pages: Address of page 0; 0 for a shard that exists only in memory.
        seen: Address of one byte per page: 1 if the page has been checked. The address is 0 for a
            shard in memory, whose pages need no check.
        checksums: Address of the XXH64 checksum of each page (uint64).
        text: Address of the tokens and separators.
        text_size: Number of tokens and separators.
        token_bytes: Number of bytes per token: 2 or 4.
        suffix_array: Address of the text positions, in suffix order (int32).
        suffix_count: Number of positions in the suffix array.
        pivots: Address of the pivots (uint64). Every SUFFIXES_PER_PIVOT-th suffix has a pivot: its
            first tokens, packed into one number.
        separator: Value after each document in the text.
        vocab_size: Vocabulary size. A document ends before the first id that is not below this
            size.
    """

    pages: int
    seen: int
    checksums: int
    text: int
    text_size: int
    token_bytes: int
    suffix_array: int
    suffix_count: int
    pivots: int
    separator: int
    vocab_size: int


class Query(NamedTuple):
    """A query that consists of the tokens ids[begin:end]."""

    ids: NDArray[np.int64]
    begin: int
    end: int


SHARD = record_dtype(ShardRow)
SUFFIXES_PER_PIVOT = 64  # part of the file format
PIVOT_BYTES = 8
DAMAGED = -1
_LESS, _EQUAL, _MORE, _BAD = -1, 0, 1, 2


@kernel
def within(row: ShardRow, low: int, high: int, depth: int, query: Query) -> tuple[int, int]:
    """Find the suffixes that match the query, within a range of ranks.

    A rank is an index in the suffix array. All suffixes in the range must begin with the same
    `depth` tokens. The function compares the query with the tokens that follow these.

    Args:
        row: Shard to search.
        low: First rank of the range.
        high: Last rank of the range, plus one.
        depth: Number of leading tokens of each suffix to skip in the comparison.
        query: Tokens to find.
    Returns:
        First rank of the matching suffixes, and last rank plus one; (0, 0) if no suffix matches;
        (DAMAGED, 0) if a page is damaged.
    """
    low = edge(row, low, high, depth, query, False)
    if low < 0:
        return DAMAGED, 0
    top, probe, step = low, low, 1
    while probe < high:  # galloping from the start, because most ranges are short
        order = _compare(row, probe, depth, query)
        if order == _BAD:
            return DAMAGED, 0
        if order != _EQUAL:
            high = probe
            break
        top, probe, step = probe + 1, probe + step, 2 * step
    top = edge(row, top, high, depth, query, True)
    if top < 0:
        return DAMAGED, 0
    return (low, top) if low < top else (0, 0)


@kernel
def edge(row: ShardRow, low: int, high: int, depth: int, query: Query, after: bool) -> int:
    """Find the first rank in [low, high] whose suffix is not less than the query.

    Suffixes are sorted by their tokens. The binary search compares only as many tokens of a suffix
    as the query has.

    Args:
        row: Shard to search.
        low: First rank of the range.
        high: Result if no suffix from `low` to `high` - 1 qualifies.
        depth: Number of leading tokens of each suffix to skip in the comparison.
        query: Tokens to compare with.
        after: Whether to skip suffixes that begin with the query.
    Returns:
        The rank, or DAMAGED if a page is damaged.
    """
    while low < high:
        middle = (low + high) // 2
        order = _compare(row, middle, depth, query)
        if order == _BAD:
            return DAMAGED
        if order == _LESS or (after and order == _EQUAL):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _compare(row: ShardRow, rank: int, depth: int, query: Query) -> int:
    """Compare a suffix, without its first `depth` tokens, with the query.

    Returns:
        _EQUAL if the suffix begins with the query. Otherwise, _LESS or _MORE if the suffix comes
        before or after the query, or _BAD if a page is damaged.
    """
    position = suffix(row, rank)
    if position < 0:
        return _BAD
    position += depth
    length = query.end - query.begin
    size = min(length, row.text_size - position)
    if size > 0 and not text_sound(row, position, size):
        return _BAD
    for offset in range(size):
        token = token_at(row, position + offset)
        if token != query.ids[query.begin + offset]:
            return _LESS if token < query.ids[query.begin + offset] else _MORE
    return _EQUAL if size == length else _MORE


@kernel
def among_pivots(row: ShardRow, query: Query) -> tuple[int, int]:
    """Find the pivots whose first tokens match the query.

    Every SUFFIXES_PER_PIVOT-th suffix has a pivot: its first tokens, packed into one number. Pivots
    are sorted like the suffixes.

    Returns:
        A range (first, last): the pivots with the indices `first` to `last` - 1 match. (DAMAGED, 0)
        if a page is damaged.
    """
    bits = 8 * row.token_bytes
    min_key, max_key = np.uint64(0), np.uint64(0)
    for offset in range(64 // bits):
        inside = query.begin + offset < query.end
        token = query.ids[query.begin + offset] if inside else 0
        min_key = (min_key << np.uint64(bits)) | np.uint64(token)
        max_key = (max_key << np.uint64(bits)) | np.uint64(token if inside else (1 << bits) - 1)
    count = (row.suffix_count + SUFFIXES_PER_PIVOT - 1) // SUFFIXES_PER_PIVOT
    first = _first_pivot(row, 0, count, min_key, False)
    low, probe, step = first, first, 1
    while low >= 0 and probe < count:  # galloping, because most ranges hold few pivots
        order = _pivot_order(row, probe, max_key)
        if order == _BAD:
            return DAMAGED, 0
        if order == _MORE:
            count = probe
            break
        low, probe, step = probe + 1, probe + step, 2 * step
    last = _first_pivot(row, low, count, max_key, True) if low >= 0 else DAMAGED
    return (first, last) if last >= 0 else (DAMAGED, 0)


@kernel
def _first_pivot(row: ShardRow, low: int, high: int, key: np.uint64, after: bool) -> int:
    """Return the index of the first pivot that is not less than `key`.

    If `after` is True, the function looks for the first pivot that is greater than `key`. Only the
    pivots `low` to `high` - 1 are searched. If none of them qualifies, the result is `high`. If a
    page is damaged, the result is DAMAGED.
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
    address = row.pivots + 8 * index
    if not _sound(row, address):
        return _BAD
    pivot = load_uint64(address)
    return _LESS if pivot < key else _EQUAL if pivot == key else _MORE


@kernel
def suffix(row: ShardRow, rank: int) -> int:
    """Return the text position of the suffix with a given rank, or DAMAGED."""
    address = row.suffix_array + 4 * rank
    if rank < 0 or rank >= row.suffix_count or not _sound(row, address):
        return DAMAGED
    position = int(load_int32(address))
    return position if 0 <= position < row.text_size else DAMAGED


@kernel
def token_at(row: ShardRow, position: int) -> int:
    """Return the token at a position whose page has been checked."""
    if row.token_bytes == 2:
        return int(load_uint16(row.text + 2 * position))
    return int(load_uint32(row.text + 4 * position))


@kernel
def text_sound(row: ShardRow, position: int, tokens: int) -> bool:
    """Return whether `tokens` tokens, starting at `position`, are on undamaged pages.

    `tokens` is at most SORTED_TOKENS, so there are only one or two such pages.
    """
    width = row.token_bytes
    return _sound(row, row.text + width * position) and _sound(
        row, row.text + width * (position + tokens - 1)
    )


@kernel
def _sound(row: ShardRow, address: int) -> bool:
    """Return whether the page at an address is undamaged.

    Each page is compared with its checksum only once.
    """
    if row.seen == 0:
        return True
    page = (address - row.pages) // PAGE
    if load_uint8(row.seen + page):
        return True
    if xxh64(row.pages + page * PAGE, PAGE) != load_uint64(row.checksums + 8 * page):
        return False
    store_uint8(row.seen + page, np.uint8(1))
    return True
