"""Notify the program before this process compiles code for the first time.

Loading compiled code from disk does not trigger the notification.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_NOTE = "paceline: compiling new kernels ({}, ...), once each; this can take about a minute"
# Called before the first compilation. Without a handler, Python prints this message on stderr.
_waiting: list[Callable[[str], object]] = [logging.getLogger(__name__).warning]


def on_first_compilation(notify: Callable[[str], None]) -> None:
    """Register a function to call once, before this process first compiles code.

    `notify` replaces the function registered earlier. By default, the package logs a warning.

    Args:
        notify: Function that receives a line for the user, with the name of the package that
            contains the code. The thread that compiles the code calls the function.
    """
    _waiting[:] = [notify]


def before_compilation(module: str) -> None:
    """Call the registered function unless it has been called already.

    Args:
        module: Full name of the module that is about to be compiled.
    """
    if _waiting:
        _waiting.pop()(_NOTE.format(".".join(module.split(".")[:2])))
