"""Parse JSON values in an answer while it is being generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

from paceline.parsing.text_source import TextSource

# How each bracket changes the nesting depth.
BRACKETS = dict.fromkeys("{[", 1) | dict.fromkeys("}]", -1)


def copy_value(source: TextSource, write: Callable[[str], None]) -> Generator[None, None, bool]:
    """Pass the text of one JSON value to `write` as the text arrives.

    Args:
        source: Unread text, which starts with the value.
        write: Function that receives the fragments of the value's text.
    Returns:
        Whether the value is complete; False if the value is missing, or if the answer ends inside
            a string, list or object.
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
    """Read one JSON value; return its text and whether the value is complete."""
    parts: list[str] = []
    complete = yield from copy_value(source, parts.append)
    return "".join(parts), complete


def decoded_string(text: str) -> str | None:
    """Decode a JSON string; return None if the text is not a JSON string."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def encoded_part(text: str) -> str:
    """Escape text for use inside a JSON string, without adding quotation marks."""
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
