"""Parse gpt-oss answers: messages with a channel and, for calls, a recipient."""

from __future__ import annotations

import re

from paceline.parsing.events import EventWriter
from paceline.parsing.parser import Schemas
from paceline.parsing.text_source import TextSource, Waiting

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
ANALYSIS, FINAL = f"{CHANNEL}analysis{MESSAGE}", f"{CHANNEL}final{MESSAGE}"
SPECIAL = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


def read_harmony(source: TextSource, writer: EventWriter, schemas: Schemas) -> Waiting:
    """Report an answer to `writer`, message by message.

    Messages with a recipient are tool calls. Other messages are reasoning if they are in the
    analysis channel, and text otherwise.
    """
    while (yield from source.peek()):
        header, marker = yield from source.read_until([MESSAGE])
        if not marker:  # the answer ends inside a header, or contains no header
            writer.content("" if any(mark in header for mark in SPECIAL) else header)
            return
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None:
            writer.begin_call(recipient[1])
            yield from source.copy_until(ENDS, writer.arguments)
        elif channel is not None and channel[1] == "analysis":
            writer.begin_reasoning()
            yield from source.copy_until(ENDS, writer.reasoning)
            writer.end_reasoning()
        else:
            yield from source.copy_until(ENDS, writer.content)
