"""Parse Gemma 4's tool calls, in which special tokens enclose strings."""

from __future__ import annotations

from collections.abc import Callable, Generator

from paceline.parsing.events import EventWriter
from paceline.parsing.json_text import copy_value, encoded_part
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting
from paceline.parsing.values import json_of, untyped_json

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'


def read_gemma4(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the text and the tool calls of an answer to `writer`."""
    marker = yield from source.copy_until([OPEN], writer.content)
    while marker:
        called = "call:" if (yield from source.take("call:")) else ""
        name = yield from source.take_while(lambda char: char.isalnum() or char in "_.-")
        if not called or not name or not (yield from source.starts_with("{")):
            writer.content(OPEN + called + name)
            marker = CLOSE
        else:
            writer.begin_call(name)
            yield from _copy_value(source, writer.arguments)
            _, marker = yield from source.read_until([CLOSE, OPEN])
        if marker == CLOSE:
            marker = yield from source.copy_until([OPEN], writer.content)


def _copy_value(source: TextSource, write: Callable[[str], None]) -> Waiting:
    """Convert a value from Gemma 4's syntax to JSON text as the value arrives."""
    yield from source.skip_spaces()
    if (yield from source.take(QUOTE)):
        write('"')
        end = yield from source.copy_until([QUOTE], lambda part: write(encoded_part(part)))
        write('"' if end else "")
    elif (yield from source.take("{")):
        yield from _copy_items(source, write, "{", "}", has_keys=True)
    elif (yield from source.take("[")):
        yield from _copy_items(source, write, "[", "]", has_keys=False)
    elif (yield from source.starts_with('"')):
        yield from copy_value(source, write)
    else:
        write(untyped_json((yield from source.take_while(lambda char: char not in ",]}"))))


def _copy_items(
    source: TextSource, write: Callable[[str], None], first: str, last: str, *, has_keys: bool
) -> Waiting:
    write(first)
    separator = ""
    while True:
        yield from source.skip_spaces()
        if (yield from source.take(last)):
            write(last)
            break
        if not (yield from source.peek()):
            break
        write(separator)
        separator = ", "
        if has_keys:
            write(json_of((yield from _read_key(source))) + ": ")
        yield from _copy_value(source, write)
        yield from source.skip_spaces()
        if not (yield from source.take(",")) and not (yield from source.starts_with(last)):
            break


def _read_key(source: TextSource) -> Generator[None, None, str]:
    if (yield from source.take(QUOTE)):
        key, _ = yield from source.read_until([QUOTE])
        yield from source.take(":")
    else:
        key, _ = yield from source.read_until([":"])
        key = key.strip().strip('"')
    return key
