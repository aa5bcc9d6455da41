"""Read prompts and interactive input from standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import BinaryIO

from paceline.errors import ConfigError
from paceline.util.text_files import decode_text

_PROMPT = "> "
_HISTORY = "chat_history"  # in the cache folder


def require_standard_input() -> BinaryIO:
    """Return standard input as a binary stream.

    Raises:
        ConfigError: Standard input is closed.
    """
    if sys.stdin is None:
        raise ConfigError(
            "standard input is closed. Leave it open, or redirect a file or a pipe to it."
        )
    return sys.stdin.buffer


def read_prompt() -> str:
    """Read all of standard input as one prompt.

    Raises:
        ConfigError: Standard input is closed or not UTF-8.
    """
    return _decoded(require_standard_input().read())


def lines_of(words: Sequence[str]) -> Callable[[], str | None]:
    """Return a function that reads a line of standard input; None marks the end.

    On a terminal, the user can edit lines. prompt_toolkit, if installed, keeps the history between
    sessions and lets the user paste several lines. Without prompt_toolkit, Python's `input` reads
    the lines.

    Args:
        words: Words that the Tab key completes at the start of a line.
    Raises:
        ConfigError: A line is not UTF-8. The returned function raises this error, and can still
            read the next line.
    """
    if not sys.stdin.isatty():
        return _piped_line
    try:
        ask = _editor(words)
    except ImportError:
        with suppress(ImportError):
            import_module("readline")  # it modifies `input`
        ask = lambda: input(_PROMPT)  # noqa: E731
    return lambda: _until_the_end(ask)


def _editor(words: Sequence[str]) -> Callable[[], str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from paceline.util import cache

    history: FileHistory | InMemoryHistory
    try:
        path = cache.root() / _HISTORY
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        history = FileHistory(str(path))
    except (OSError, cache.CacheError):  # no writable home: history is lost at exit
        history = InMemoryHistory()
    completer = WordCompleter(list(words), sentence=True)
    session: PromptSession[str] = PromptSession(
        _PROMPT, history=history, completer=completer, complete_while_typing=False
    )
    return lambda: str(session.prompt())


def _until_the_end(ask: Callable[[], str]) -> str | None:
    try:
        return ask()
    except EOFError:
        return None


def _piped_line() -> str | None:
    line = require_standard_input().readline()
    return _decoded(line).rstrip("\r\n") if line else None


def _decoded(content: bytes) -> str:
    try:
        return decode_text(content, "standard input")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input: got {error}; expected text in UTF-8. Convert it first."
        ) from error
