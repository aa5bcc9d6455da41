"""Call kernels from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def from_python(kernel: F) -> F:
    """Return a function that calls a kernel, which only compiled code can call.

    The kernel must not return arrays: kernels do not count references.
    """
    return cast(F, numba.njit(lambda *arguments: kernel(*arguments)))
