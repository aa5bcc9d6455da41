"""Parse JSON values in an answer while it is being generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

from paceline.parsing.text_source import TextSource

# Change of the nesting depth at each bracket.
BRACKETS = dict.fromkeys("{[", 1) | dict.fromkeys("}]", -1)


def copy_value(source: TextSource, write: Callable[[str], None]) -> Generator[None, None, bool]:
    """Copy the text of one JSON value as it arrives.

    Args:
        source: Unread text, which starts with the value.
        write: Function that receives the text in parts.
    Returns:
        Whether the value is complete. A number or word is complete if a separator follows the
        number or word.
    """
    first = yield from source.peek()
    if first == '"':
        return (yield from _copy_string(source, write))
    if first not in ("{", "["):
        word = yield from source.take_while(lambda char: char not in ",]} \t\r\n")
        write(word)
        return bool(word)
    depth = 0
    while True:
        char = yield from source.peek()
        if char == '"':
            if not (yield from _copy_string(source, write)):
                return False
            continue
        if not char:
            return False
        yield from source.next()
        write(char)
        depth += BRACKETS.get(char, 0)
        if depth == 0:
            return True


def read_value(source: TextSource) -> Generator[None, None, tuple[str, bool]]:
    """Return the text of one JSON value, and whether it is complete."""
    parts: list[str] = []
    complete = yield from copy_value(source, parts.append)
    return "".join(parts), complete


def decoded_string(text: str) -> str | None:
    """Return the string that JSON text encodes, or None if it is not a string."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def encoded_part(text: str) -> str:
    """Escape characters as in a JSON string, without the quotation marks."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _copy_string(source: TextSource, write: Callable[[str], None]) -> Generator[None, None, bool]:
    write((yield from source.next()))
    while char := (yield from source.next()):
        write(char)
        if char == "\\":
            write((yield from source.next()))
        elif char == '"':
            return True
    return False
