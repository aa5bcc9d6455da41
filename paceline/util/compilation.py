"""Notify the program before this process compiles code for the first time.

Loading compiled code from disk does not trigger the notification.
"""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[str], None]] = []  # called before the first compilation


def on_first_compilation(notify: Callable[[str], None]) -> None:
    """Register a function to call once, before this process first compiles code.

    If another function is already registered, `notify` replaces that function.

    Args:
        notify: Function that receives the name of the package that contains the code, such as
            "paceline.cpu". The thread that compiles the code calls the function.
    """
    _waiting[:] = [notify]


def before_compilation(module: str) -> None:
    """Call the registered function unless it has been called already.

    Args:
        module: Full name of the module that is about to be compiled.
    """
    if _waiting:
        _waiting.pop()(".".join(module.split(".")[:2]))
