"""One shard as a row of addresses and sizes: how compiled code reads it, and never believes what is damaged.

Every page (4 KiB) is compared with its checksum before its first use, and every position with the size of the text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import (
    kernel,
    load_int32,
    load_uint8,
    load_uint16,
    load_uint32,
    load_uint64,
    store_uint8,
)
from paceline.datastore.hashing import PAGE, xxh64

# Columns of a row. Addresses: of page 0, of a byte per page (1 = found good; address 0: memory, nothing to check), of the
# checksum of each page, of the text, the suffix array and the pivots. Sizes are in elements, WIDTH is bytes a token.
BASE, SEEN, SUMS, TEXT, TOKENS, WIDTH, ARRAY, SUFFIXES, PIVOTS, SEPARATOR, VOCAB = range(11)
COLUMNS = 11
STRIDE = 64  # every STRIDE-th suffix has a pivot: its first tokens as one number, for the upper steps of a search
PIVOT_BYTES = 8
DAMAGED = -1
_LESS, _EQUAL, _MORE, _BAD = -1, 0, 1, 2


@kernel
def within(
    row: NDArray[np.int64], low: int, high: int, depth: int, ids: NDArray[np.int64], begin: int, end: int
) -> tuple[int, int]:
    """The ranks in [low, high) whose suffix has ids[begin:end] after `depth` tokens; (0, 0) if none, (DAMAGED, 0)."""
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
    row: NDArray[np.int64], low: int, high: int, depth: int, ids: NDArray[np.int64], begin: int, end: int, after: bool
) -> int:
    """The first rank in [low, high] whose suffix is not below the ids (or, `after`, is above them); DAMAGED."""
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
def _compare(row: NDArray[np.int64], rank: int, depth: int, ids: NDArray[np.int64], begin: int, end: int) -> int:
    """The suffix with this rank, from `depth` on, against ids[begin:end], as far as those go: _LESS, _EQUAL, _MORE or _BAD."""
    position = suffix(row, rank)
    if position < 0:
        return _BAD
    position += depth
    size = min(end - begin, row[TOKENS] - position)
    if size > 0 and not text_sound(row, position, size):
        return _BAD
    for offset in range(size):
        token = token_at(row, position + offset)
        if token != ids[begin + offset]:
            return _LESS if token < ids[begin + offset] else _MORE
    return _EQUAL if size == end - begin else _MORE


@kernel
def among_pivots(row: NDArray[np.int64], ids: NDArray[np.int64], begin: int, end: int) -> tuple[int, int]:
    """How many pivots are below all suffixes that begin with ids[begin:end], as far as pivots tell, and how many are not above.

    (DAMAGED, 0) where the shard cannot be believed.
    """
    bits = 8 * row[WIDTH]
    least, most = np.uint64(0), np.uint64(0)
    for offset in range(64 // bits):
        inside = begin + offset < end
        token = ids[begin + offset] if inside else 0
        least = (least << np.uint64(bits)) | np.uint64(token)
        most = (most << np.uint64(bits)) | np.uint64(token if inside else (1 << bits) - 1)
    count = (row[SUFFIXES] + STRIDE - 1) // STRIDE
    first = _first_pivot(row, 0, count, least, False)
    low, probe, step = first, first, 1
    while low >= 0 and probe < count:  # most ranges hold few pivots: their end is looked for from their start
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
def _first_pivot(row: NDArray[np.int64], low: int, high: int, key: np.uint64, after: bool) -> int:
    """The first pivot in [low, high] that is not below `key` (or, `after`, is above it); DAMAGED."""
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
def _pivot_order(row: NDArray[np.int64], index: int, key: np.uint64) -> int:
    """A pivot against a key: _LESS, _EQUAL, _MORE or _BAD."""
    address = row[PIVOTS] + 8 * index
    if not _sound(row, address):
        return _BAD
    pivot = load_uint64(address)
    return _LESS if pivot < key else _EQUAL if pivot == key else _MORE


@kernel
def suffix(row: NDArray[np.int64], rank: int) -> int:
    """Position in the text of the suffix with this rank; DAMAGED."""
    address = row[ARRAY] + 4 * rank
    if rank < 0 or rank >= row[SUFFIXES] or not _sound(row, address):
        return DAMAGED
    position = int(load_int32(address))
    return position if 0 <= position < row[TOKENS] else DAMAGED


@kernel
def token_at(row: NDArray[np.int64], position: int) -> int:
    """The token at a position whose page is good."""
    if row[WIDTH] == 2:
        return int(load_uint16(row[TEXT] + 2 * position))
    return int(load_uint32(row[TEXT] + 4 * position))


@kernel
def text_sound(row: NDArray[np.int64], position: int, tokens: int) -> bool:
    """Whether the pages that hold `tokens` tokens, 1 to SORTED, from `position` on are good: one page or two."""
    width = row[WIDTH]
    return _sound(row, row[TEXT] + width * position) and _sound(row, row[TEXT] + width * (position + tokens - 1))


@kernel
def _sound(row: NDArray[np.int64], address: int) -> bool:
    """Whether the page of `address` has the checksum it should have; looked at once."""
    if row[SEEN] == 0:
        return True
    page = (address - row[BASE]) // PAGE
    if load_uint8(row[SEEN] + page):
        return True
    if xxh64(row[BASE] + page * PAGE, PAGE) != load_uint64(row[SUMS] + 8 * page):
        return False
    store_uint8(row[SEEN] + page, np.uint8(1))
    return True
