"""Notify the program before its process first compiles code.

Code that is loaded from disk is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[str], None]] = []  # called before the first compilation


def on_first_compilation(notify: Callable[[str], None]) -> None:
    """Call a function once, before this process first compiles code.

    The function replaces that of an earlier call.

    Args:
        notify: The function; its argument is the package that contains the code, such as
            "paceline.cpu". The thread that compiles calls it.
    """
    _waiting[:] = [notify]


def before_compilation(module: str) -> None:
    """Call the function given to `on_first_compilation`, unless it has been called.

    Args:
        module: Name of the module that contains the code.
    """
    if _waiting:
        _waiting.pop()(".".join(module.split(".")[:2]))
