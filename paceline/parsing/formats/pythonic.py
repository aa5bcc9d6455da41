"""Parse tool calls in a Python list, such as [get_weather(city="Paris"), now()]."""

from __future__ import annotations

from collections.abc import Generator

from paceline.parsing.events import EventWriter
from paceline.parsing.json_text import BRACKETS
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting
from paceline.parsing.values import json_of, untyped_json

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_DEPTHS = BRACKETS | {"(": 1, ")": -1}


def read_pythonic(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the calls at the start of a Llama 4 answer, then the remaining text."""
    spaces = yield from source.skip_spaces()
    raw = yield from _read_list(source, writer)
    writer.content("" if raw is None else spaces + raw)
    yield from source.copy_until([], writer.content)


def read_lfm2(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the text and the tool calls of an LFM2 answer to `writer`.

    Special tokens enclose each list of calls.
    """
    while (yield from source.copy_until([OPEN], writer.content)):
        spaces = yield from source.skip_spaces()
        raw = yield from _read_list(source, writer)
        if raw is not None:
            writer.content(OPEN + spaces + raw)
            continue
        yield from source.skip_spaces()
        yield from source.take(CLOSE)


def _read_list(source: TextSource, writer: EventWriter) -> Generator[None, None, str | None]:
    """Report the tool calls in a list to `writer`.

    Returns:
        None if the first entry is a call; otherwise, the text that was read.
    """
    raw = "[" if (yield from source.take("[")) else ""
    if not raw:
        return raw
    is_first = True
    while True:
        raw += yield from source.skip_spaces()
        name = yield from source.take_while(_is_name)
        raw += name
        if not name or not (yield from source.take("(")):
            break
        is_first = False
        writer.begin_call(name)
        yield from _read_arguments(source, writer)
        yield from source.skip_spaces()
        if not (yield from source.take(",")):
            break
    if is_first:
        return raw
    yield from source.skip_spaces()
    yield from source.take("]")
    return None


def _read_arguments(source: TextSource, writer: EventWriter) -> Waiting:
    separator = "{"
    while True:
        yield from source.skip_spaces()
        if (yield from source.take(")")):
            writer.arguments("{}" if separator == "{" else "}")
            break
        key = yield from source.take_while(_is_name)
        yield from source.skip_spaces()
        if not key or not (yield from source.take("=")):
            break
        writer.arguments(f"{separator}{json_of(key)}: ")
        separator = ", "
        text, complete = yield from _read_value(source)
        if not complete:
            break
        writer.arguments(untyped_json(text))
        yield from source.take(",")


def _read_value(source: TextSource) -> Generator[None, None, tuple[str, bool]]:
    """Read the Python code of one argument, up to a comma or the closing bracket.

    Returns:
        The code, and whether the argument is complete.
    """
    text, depth, quote = "", 0, ""
    while char := (yield from source.peek()):
        if not quote and depth == 0 and char in ",)":
            return text, True
        text += yield from source.next()
        if quote:
            if char == "\\":
                text += yield from source.next()
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        else:
            depth += _DEPTHS.get(char, 0)
    return text, False


def _is_name(char: str) -> bool:
    return char.isalnum() or char in "_.-"
