"""XXH64 of pages: the checksum that is fast enough to be taken of every page before its first use.

Source: the public specification, github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, seed 0,
for lengths that are a multiple of 32 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.util.compiled import compiled, load_uint64

PAGE = 4096  # bytes

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)


@compiled
def _rotate(value: Any, by: int) -> Any:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@compiled
def _round(lane: Any, word: Any) -> Any:
    return _rotate(lane + word * _P2, 31) * _P1


@compiled
def _merge(digest: Any, lane: Any) -> Any:
    return (digest ^ _round(np.uint64(0), lane)) * _P1 + _P4


@compiled
def xxh64(address: int, size: int) -> Any:
    """Return the XXH64 of `size` bytes at `address`; `size` is a multiple of 32 and not 0."""
    a, b = _P1 + _P2, _P2
    c, d = np.uint64(0), np.uint64(0) - _P1
    for at in range(address, address + size, 32):
        a = _round(a, load_uint64(at))
        b = _round(b, load_uint64(at + 8))
        c = _round(c, load_uint64(at + 16))
        d = _round(d, load_uint64(at + 24))
    digest = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    digest = _merge(_merge(_merge(_merge(digest, a), b), c), d) + np.uint64(size)
    digest = (digest ^ (digest >> np.uint64(33))) * _P2
    digest = (digest ^ (digest >> np.uint64(29))) * _P3
    return digest ^ (digest >> np.uint64(32))


@compiled
def hash_pages(address: int, sums: NDArray[np.uint64]) -> None:
    """Fill `sums` [pages] with the XXH64 of each page from `address` on."""
    for page in range(sums.size):
        sums[page] = xxh64(address + page * PAGE, PAGE)


@compiled
def find_bad_pages(address: int, sums: NDArray[np.uint64], bad: NDArray[np.int64]) -> int:
    """Fill `bad` with the numbers of the pages whose XXH64 is not in `sums`, as many as it
    takes; returns how many there are.
    """
    found = 0
    for page in range(sums.size):
        if xxh64(address + page * PAGE, PAGE) != sums[page]:
            if found < bad.size:
                bad[found] = page
            found += 1
    return found
