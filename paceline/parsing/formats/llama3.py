"""Parse Llama 3's tool calls: JSON objects at the start of the answer."""

from __future__ import annotations

from paceline.parsing.call_object import read_call_object
from paceline.parsing.events import EventWriter
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting

TAG = "<|python_tag|>"
_SEPARATORS = " \t\r\n;,"


def read_llama3_json(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the tool calls at the start of an answer, then the remaining text."""
    spaces = yield from source.skip_spaces()
    tagged = yield from source.take(TAG)
    while (yield from source.starts_with("{")):
        raw = yield from read_call_object(source, writer)
        if raw is not None:
            writer.content(spaces + (TAG if tagged else "") + raw)
            tagged, spaces = False, ""
            break
        spaces, tagged = (yield from source.take_while(_SEPARATORS.__contains__)), False
    writer.content(("" if writer.num_calls else spaces) + (TAG if tagged else ""))
    yield from source.copy_until([], writer.content)
