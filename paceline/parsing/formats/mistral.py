"""Parse Mistral's tool calls, which follow the token [TOOL_CALLS]."""

from __future__ import annotations

from paceline.parsing.call_object import read_call_object
from paceline.parsing.events import EventWriter
from paceline.parsing.json_text import copy_value
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting

OPEN, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def read_mistral(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the text and the tool calls of an answer to `writer`.

    [TOOL_CALLS] precedes a JSON list of calls, or the name and arguments of one call.
    """
    while (yield from source.copy_until([OPEN], writer.content)):
        spaces = yield from source.skip_spaces()
        if (yield from source.take("[")):
            yield from _read_list(source, writer, OPEN + spaces + "[")
            continue
        name = yield from source.take_while(lambda char: char not in "[{ \t\r\n")
        if not name:
            writer.content(OPEN + spaces)
            continue
        writer.begin_call(name)
        if (yield from source.take(CALL_ID)):
            yield from source.take_while(lambda char: char not in "[{")
        yield from source.take(ARGUMENTS)
        yield from source.skip_spaces()
        yield from copy_value(source, writer.arguments)


def _read_list(source: TextSource, writer: EventWriter, before: str) -> Waiting:
    before += yield from source.skip_spaces()
    raw = yield from read_call_object(source, writer)
    if raw is not None:
        writer.content(before + raw)
        return
    while raw is None:
        yield from source.skip_spaces()
        if not (yield from source.take(",")):
            break
        yield from source.skip_spaces()
        raw = yield from read_call_object(source, writer)
    yield from source.take("]")
