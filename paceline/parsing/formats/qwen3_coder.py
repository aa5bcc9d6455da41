"""Parse Qwen3-Coder's tool calls, which enclose each parameter in tags."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from paceline.parsing.events import EventWriter
from paceline.parsing.json_text import encoded_part
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting
from paceline.parsing.values import is_text_only, json_of, property_schema, untyped_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, PARAMETER = "<function=", "<parameter="
_ENDS = ("\n</parameter>", "</parameter>")


def read_qwen3_coder(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the text and the tool calls of an answer to `writer`.

    Strings have no quotes in this format, so the schemas determine which arguments are strings.
    """
    while marker := (yield from source.copy_until([OPEN, FUNCTION], writer.content)):
        spaces = (yield from source.skip_spaces()) if marker == OPEN else ""
        if marker == OPEN and not (yield from source.take(FUNCTION)):
            writer.content(OPEN + spaces)
            continue
        name, end = yield from source.read_until([">"])
        if not end or not name.strip():
            writer.content((OPEN + spaces if marker == OPEN else "") + FUNCTION + name + end)
            continue
        writer.begin_call(name.strip())
        if not (yield from _read_arguments(source, writer, schemas.get(name.strip()))):
            continue
        yield from source.skip_spaces()
        yield from source.take("</function>")
        yield from source.skip_spaces()
        yield from source.take(CLOSE)


def _read_arguments(
    source: TextSource, writer: EventWriter, schema: Mapping[str, Any] | None
) -> Generator[None, None, bool]:
    """Report the arguments of a call to `writer`; return whether they are complete."""
    separator = "{"
    yield from source.skip_spaces()
    while (yield from source.take(PARAMETER)):
        key, _ = yield from source.read_until([">"])
        writer.arguments(f"{separator}{json_of(key.strip())}: ")
        separator = ", "
        yield from source.take("\n")
        if not (yield from _read_value(source, writer, property_schema(schema, key.strip()))):
            return False
        yield from source.skip_spaces()
    complete = bool((yield from source.peek()))
    if complete:
        writer.arguments("{}" if separator == "{" else "}")
    return complete


def _read_value(
    source: TextSource, writer: EventWriter, schema: Mapping[str, Any] | None
) -> Generator[None, None, bool]:
    if not is_text_only(schema):
        text, end = yield from source.read_until(_ENDS)
        writer.arguments(untyped_json(text) if end else text)
        return bool(end)
    writer.arguments('"')
    end = yield from source.copy_until(_ENDS, lambda part: writer.arguments(encoded_part(part)))
    writer.arguments('"' if end else "")
    return bool(end)
