"""What comes from standard input."""

from __future__ import annotations

import sys
from typing import BinaryIO

from paceline.errors import ConfigError


def read_prompt() -> str:
    """Return all of standard input as a prompt.

    Raises:
        ConfigError: it is closed, or not UTF-8.
    """
    return _decoded(require_standard_input().read())


def read_line() -> str | None:
    """Return the next line of standard input, without its end; None at the end.

    Raises:
        ConfigError: it is closed, or the line is not UTF-8; the next one can be read.
    """
    line = require_standard_input().readline()
    return _decoded(line).rstrip("\r\n") if line else None


def require_standard_input() -> BinaryIO:
    """Return standard input.

    Raises:
        ConfigError: it is closed.
    """
    if sys.stdin is None:
        raise ConfigError("standard input: got it closed; expected text to read. Leave it open, or give a file or a pipe.")
    return sys.stdin.buffer


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input: got {error}; expected text in UTF-8. Convert it first.") from error
