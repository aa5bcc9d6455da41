"""Reserve memory for the frames of Python functions.

Python allocates frames in chunks of 16 KB, and frees a chunk when its last frame returns. A loop
that calls functions across the end of a chunk maps and unmaps memory in every pass. During the
compilation of kernels, this mapping takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

from paceline.util.util_settings import RESERVED_FRAME_WORDS

R = TypeVar("R")


def _call(function: Callable[[], R]) -> R:
    return function()


def call_with_frame_memory(function: Callable[[], R]) -> R:
    """Call a function so that its frames and those of its callees share one chunk.

    This call has one very large frame, for which Python allocates a chunk of that size, rounded up
    to a power of two. The function's frames use the rest of the chunk. Only the pages that these
    frames touch take memory.
    """
    code = _call.__code__.replace(co_stacksize=RESERVED_FRAME_WORDS)
    caller: Callable[[Callable[[], R]], R] = FunctionType(code, globals())
    return caller(function)
