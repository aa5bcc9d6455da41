"""Prevent SDPA from using cuDNN on CUDA.

cuDNN builds a new plan whenever the number of keys changes, which happens in every decode step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()


class _Forwards:
    """Counts the running forward passes, which all share torch's cuDNN setting."""

    count = 0
    allowed = True  # whether torch allowed cuDNN before the first of these forward passes


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Disable cuDNN in SDPA during a forward pass.

    If several forward passes run concurrently, the last one to end restores torch's cuDNN setting.
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
