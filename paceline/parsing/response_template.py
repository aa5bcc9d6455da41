"""Parse answers with a tokenizer's response template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.parsing.events import AnswerEvent, EventWriter

_REASONING = ("reasoning_content", "thinking")  # names that templates use for the field
_CALLS, _CONTENT = "tool_calls", "content"


class TemplateParser:
    """Parses an answer with a tokenizer's `response_template`.

    The parser reports a tool call only when the call is complete, because transformers parses the
    arguments at the end of the call. If a call cannot be parsed, the parser reports its text and
    all later text as content. The parser reads the answer one character at a time, so the result
    does not depend on how the text is split into chunks.

    Args:
        template: The tokenizer's response template.
        prefix: Text of the prompt, which may include the start of the answer.
        tools: Definitions of the tools, including the types of their arguments. Without tools, the
            parser reports calls as content.
    """

    def __init__(
        self, template: Mapping[str, Any], prefix: str, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser = ResponseParser(template, prefix=prefix, tools=list(tools))
        self._writer = EventWriter()
        self._reads_calls = bool(tools)
        self._pending = ""  # text that no event has reported: markers, or an open call
        self._in_call = self._has_failed = False
        for region in self._parser.initial_events:
            if region["type"] != "region_chunk":
                self._mark_region(region["type"], region["field"])

    @property
    def in_reasoning(self) -> bool:
        """Return whether the text received so far ends inside the reasoning."""
        return self._writer.in_reasoning

    def feed(self, text: str) -> list[AnswerEvent]:
        """Parse more text, and return the events that later text cannot change."""
        for index, char in enumerate(text):
            if self._has_failed:
                self._writer.content(text[index:])
                break
            self._pending += char
            try:
                self._report(self._parser.feed(char))
            except (KeyError, ValueError):  # the call violates the template's rules
                self._fail()
        return self._writer.take()

    def finish(self) -> list[AnswerEvent]:
        """End the answer, and return its remaining events."""
        if not self._has_failed:
            try:
                self._report(self._parser.finalize()[1])
            except (KeyError, ValueError):
                self._fail()
        self._writer.finish()
        return self._writer.take()

    def _fail(self) -> None:
        self._has_failed = True
        self._writer.content(self._pending)

    def _report(self, regions: Sequence[Mapping[str, Any]]) -> None:
        for region in regions:
            kind, name = region["type"], region["field"]
            if kind == "region_chunk" and name != _CALLS:
                self._report_text(name, region["text"])
            elif kind == "region_close" and name == _CALLS:
                self._report_calls(region["value"])
            else:
                self._mark_region(kind, name)
        if not self._in_call and any(region["type"] != "region_chunk" for region in regions):
            self._pending = ""

    def _report_text(self, name: str, text: str) -> None:
        self._pending = self._pending.removeprefix(text)
        if name in _REASONING:
            self._writer.reasoning(text)
        elif name == _CONTENT:
            self._writer.content(text)

    def _mark_region(self, kind: str, name: str) -> None:
        if kind == "region_open":
            self._in_call = name == _CALLS
        if name in _REASONING:
            if kind == "region_open":
                self._writer.begin_reasoning()
            else:
                self._writer.end_reasoning()

    def _report_calls(self, value: Any) -> None:
        self._in_call = False
        calls = [_named_arguments(call) for call in (value if isinstance(value, list) else [value])]
        if not self._reads_calls:
            self._writer.content(self._pending)
            return
        for name, arguments in calls:
            self._writer.begin_call(name)
            self._writer.arguments(arguments)


def _named_arguments(call: Any) -> tuple[str, str]:
    """Return the name of a tool call, and its arguments as JSON text.

    Raises:
        ValueError: `call` is not a tool call, or its arguments cannot be written as JSON.
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise ValueError("not a call")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        return name, arguments
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)
