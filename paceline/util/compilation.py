"""Notify the program before its process first compiles code.

Code that is loaded from disk is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[], None]] = []  # called before the first compilation


def on_first_compilation(notify: Callable[[], None]) -> None:
    """Call a function once, before this process first compiles code.

    The function replaces that of an earlier call.

    Args:
        notify: The function. The thread that compiles calls it.
    """
    _waiting[:] = [notify]


def before_compilation() -> None:
    """Call the function given to `on_first_compilation`, unless it has been called."""
    if _waiting:
        _waiting.pop()()
