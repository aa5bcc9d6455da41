"""Count the physical memory behind tensors."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

_PAGE_MAP = Path("/proc/self/pagemap")
_ENTRY_BYTES = 8
# Page in memory that no other address maps; unwritten pages all map to one page of zeros.
_OWN = np.uint64(1 << 63 | 1 << 56)

needs_page_map = pytest.mark.skipif(not _PAGE_MAP.exists(), reason="needs Linux")


def resident_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of all written pages of contiguous tensors that are in memory."""
    pages: set[int] = set()
    with _PAGE_MAP.open("rb", buffering=0) as file:
        for tensor in tensors:
            first = tensor.data_ptr() // mmap.PAGESIZE
            end = -(-(tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE)
            file.seek(first * _ENTRY_BYTES)
            entries = np.frombuffer(file.read((end - first) * _ENTRY_BYTES), dtype=np.uint64)
            pages.update((first + np.flatnonzero(entries & _OWN == _OWN)).tolist())
    return len(pages) * mmap.PAGESIZE
