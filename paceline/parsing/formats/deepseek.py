"""Parse the tool calls of DeepSeek V3, R1 and V3.1, enclosed in special tokens."""

from __future__ import annotations

from paceline.parsing.events import EventWriter
from paceline.parsing.json_text import copy_value
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
SPECIAL = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)


def read_deepseek(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report the text and the tool calls of an answer to `writer`.

    The arguments of a call follow the function's name, either directly or in a code block.
    """
    while marker := (
        yield from source.copy_until([CALLS_BEGIN, CALLS_END, CALL_BEGIN], writer.content)
    ):
        if marker != CALL_BEGIN:
            continue
        before, end_marker = yield from source.read_until([SEPARATOR, CALL_END, CALLS_END])
        if end_marker != SEPARATOR:
            writer.content(before)
            continue
        name = before.strip()
        if not (yield from source.starts_with("{")):
            name = (yield from source.take_while(lambda char: char not in "\n{<")).strip()
            yield from source.skip_spaces()
            yield from source.take("```json")
            yield from source.skip_spaces()
        writer.begin_call(name)
        yield from copy_value(source, writer.arguments)
        yield from source.read_until([CALL_END, CALLS_END])
