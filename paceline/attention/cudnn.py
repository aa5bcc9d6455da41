"""SDPA without cuDNN on CUDA, which builds a plan for every new length of the keys: here, in
every step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()


class _Forwards:
    """The forwards under way, in all threads: torch has one switch for the process."""

    count = 0
    allowed = True  # cuDNN, before the first of them


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Keep SDPA from cuDNN in the forward inside; the last forward that ends puts the switch
    back.
    """
    with _lock:
        if not _Forwards.count:
            _Forwards.allowed = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            torch.backends.cuda.enable_cudnn_sdp(False)
        _Forwards.count += 1
    try:
        yield
    finally:
        with _lock:
            _Forwards.count -= 1
            if not _Forwards.count:
                torch.backends.cuda.enable_cudnn_sdp(_Forwards.allowed)
