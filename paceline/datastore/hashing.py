"""Compute XXH64 checksums of a datastore's pages in compiled code.

Compiled code, which cannot call the `xxhash` library, checks each page before the page's first
use. The functions follow the public specification at
github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. The seed is 0, and sizes must be multiples
of 32 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.util.compiled import compiled, kernel, load_uint64

PAGE = 4096  # bytes

# The primes from the specification.
_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)


@kernel
def _rotate(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel
def _round(accumulator: Any, word: Any) -> Any:
    return _rotate(accumulator + word * _P2, 31) * _P1


@kernel
def _merge(digest: Any, accumulator: Any) -> Any:
    return (digest ^ _round(np.uint64(0), accumulator)) * _P1 + _P4


@compiled
def xxh64(address: int, size: int) -> Any:
    """Return the XXH64 of bytes in memory.

    Args:
        address: Address of the first byte.
        size: Number of bytes; a multiple of 32, at least 32.
    """
    a, b = _P1 + _P2, _P2
    c, d = np.uint64(0), np.uint64(0) - _P1
    for block in range(address, address + size, 32):
        a = _round(a, load_uint64(block))
        b = _round(b, load_uint64(block + 8))
        c = _round(c, load_uint64(block + 16))
        d = _round(d, load_uint64(block + 24))
    digest = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    digest = _merge(_merge(_merge(_merge(digest, a), b), c), d) + np.uint64(size)
    digest = (digest ^ (digest >> np.uint64(33))) * _P2
    digest = (digest ^ (digest >> np.uint64(29))) * _P3
    return digest ^ (digest >> np.uint64(32))


@compiled
def hash_pages(address: int, sums: NDArray[np.uint64]) -> None:
    """Write the XXH64 of each page to `sums` [pages]; page 0 begins at `address`."""
    for page in range(sums.size):
        sums[page] = xxh64(address + page * PAGE, PAGE)


@compiled
def find_bad_pages(address: int, sums: NDArray[np.uint64], bad: NDArray[np.int64]) -> int:
    """Find the pages whose XXH64 differs from `sums`.

    Args:
        address: Address of the first page.
        sums: Expected checksums, [pages].
        bad: Output: indices of the first n damaged pages, [n].
    Returns:
        The total number of damaged pages, which may exceed n.
    """
    count = 0
    for page in range(sums.size):
        if xxh64(address + page * PAGE, PAGE) != sums[page]:
            if count < bad.size:
                bad[count] = page
            count += 1
    return count
