"""Allocate zeros that take up physical memory only where they are written."""

from __future__ import annotations

import math
import mmap
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_HUGE_PAGE_BYTES = 1 << 21
_STRICT = "2"  # value of vm.overcommit_memory
# Python 3.11 has no name for this flag of Linux.
_NO_RESERVE = 0x4000 if platform.machine() in ("x86_64", "aarch64", "riscv64") else 0


@cache
def has_lazy_memory() -> bool:
    """Return whether allocated memory counts as used only once it is written.

    On Windows, with `vm.overcommit_memory=2`, or with a limit on address space, all allocated
    memory counts as used.
    """
    if sys.platform == "win32":
        return False
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    try:
        mode = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="utf-8").strip()
    except OSError:
        mode = ""
    return limit == resource.RLIM_INFINITY and mode != _STRICT


def can_reserve(num_bytes: int) -> bool:
    """Return whether the process can reserve address space without using memory."""
    if not has_lazy_memory():
        return False
    try:
        _map(num_bytes).close()
    except (OSError, OverflowError):
        return False
    return True


class ZeroMemory:
    """A tensor of zeros whose pages use physical memory only once they are written.

    On a GPU, or if `has_lazy_memory` is false, all pages use physical memory immediately.

    Args:
        like: Tensor with the dtype and device of the zeros.
        shape: Shape of the zeros.
    Attributes:
        tensor: The zeros.
    """

    def __init__(self, like: Tensor, *shape: int) -> None:
        self._pages: mmap.mmap | None = None
        # Not all forward passes that write to them are in inference mode.
        with torch.inference_mode(False):
            if like.device.type != "cpu":
                self.tensor = torch.zeros(shape, dtype=like.dtype, device=like.device)
                return
            num_bytes = math.prod(shape) * like.element_size()
            if has_lazy_memory():
                self._pages = _map(num_bytes)
                memory = np.frombuffer(self._pages, dtype=np.uint8, count=num_bytes)
            else:
                memory = np.zeros(num_bytes, dtype=np.uint8)
            self.tensor = torch.from_numpy(memory).view(like.dtype).view(shape)

    def use_huge_pages(self, first_byte: int, end_byte: int) -> None:
        """Let the system use huge pages between two byte offsets.

        With huge pages, attention needs fewer address translations. The system allocates memory for
        a whole huge page at once, even if the program writes only part of the page.
        """
        if self._pages is None or not hasattr(mmap, "MADV_HUGEPAGE"):
            return
        begin = self.tensor.data_ptr()
        first = -(-(begin + first_byte) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        length = (begin + end_byte) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES - first
        if length > 0:
            with suppress(OSError):  # not all kernels have huge pages
                self._pages.madvise(mmap.MADV_HUGEPAGE, first - begin, length)

    def release(self, first_byte: int, end_byte: int) -> None:
        """Return the memory of all full pages between two byte offsets to the system.

        The values in these pages become zero or stay unchanged, depending on the system.
        """
        if self._pages is None:
            return
        first = -(-first_byte // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end_byte // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._pages.madvise(mmap.MADV_DONTNEED, first, length)


def _map(num_bytes: int) -> mmap.mmap:
    """Map a private region of zeros without reserving physical memory for it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":
        flags |= getattr(mmap, "MAP_NORESERVE", _NO_RESERVE)
    pages = mmap.mmap(-1, max(1, num_bytes), flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # With huge pages, a single position of one head would use 2 MiB.
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages
