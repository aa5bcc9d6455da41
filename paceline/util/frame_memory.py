"""Reserve memory for the frames of Python functions.

Python allocates frames in chunks of 16 KB, and frees a chunk when its last frame returns. If the
calls in a loop cross the end of a chunk, Python maps and unmaps memory in every iteration. Without
this module, mapping would take a tenth of the time needed to compile kernels.
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

    The call itself uses one very large frame. For this frame, Python allocates a chunk whose size
    is rounded up to a power of two, and the function's frames occupy the rest of the chunk. Pages
    that no frame touches occupy no physical memory.
    """
    code = _call.__code__.replace(co_stacksize=RESERVED_FRAME_WORDS)
    caller: Callable[[Callable[[], R]], R] = FunctionType(code, globals())
    return caller(function)
