"""Parse the tool calls of Hermes and Qwen: JSON objects between <tool_call> tags."""

from __future__ import annotations

from paceline.parsing.call_object import read_call_object
from paceline.parsing.events import EventWriter
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the text and the tool calls of an answer to `writer`."""
    marker = yield from source.copy_until([OPEN], writer.content)
    while marker:
        spaces = yield from source.skip_spaces()
        raw = yield from read_call_object(source, writer)
        if raw is not None:
            writer.content(OPEN + spaces + raw)
            marker = yield from source.copy_until([OPEN], writer.content)
            continue
        _, marker = yield from source.read_until([CLOSE, OPEN])
        if marker == CLOSE:
            marker = yield from source.copy_until([OPEN], writer.content)
