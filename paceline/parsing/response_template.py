"""Parse answers with a tokenizer's response template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.parsing.events import AnswerEvent, EventWriter

_REASONING = ("reasoning_content", "thinking")  # names of the field in templates
_CALLS = "tool_calls"


class TemplateParser:
    """Parses an answer with a tokenizer's `response_template`.

    A call is reported once it is complete, because transformers parses its arguments at the end.
    Text of a call that cannot be parsed is reported as content.

    Args:
        template: The tokenizer's template.
        prefix: Text of the prompt, which may include the start of the answer.
        tools: Definitions of the tools, which specify the types of arguments.
    """

    def __init__(
        self, template: Mapping[str, Any], prefix: str, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser = ResponseParser(template, prefix=prefix, tools=list(tools))
        self._writer = EventWriter()
        self._pending = ""  # text of an open call
        self._has_failed = False

    def feed(self, text: str) -> list[AnswerEvent]:
        """Add text, and return the events that are now certain."""
        if self._has_failed:
            self._writer.content(text)
            return self._writer.take()
        self._pending += text
        try:
            self._report(self._parser.feed(text))
        except ValueError:
            self._fail()
        return self._writer.take()

    def finish(self) -> list[AnswerEvent]:
        """End the answer, and return its remaining events."""
        try:
            if not self._has_failed:
                self._report(self._parser.finalize()[1])
        except ValueError:
            self._fail()
        self._writer.finish()
        return self._writer.take()

    def _fail(self) -> None:
        self._has_failed = True
        self._writer.content(self._pending)

    def _report(self, regions: Sequence[Mapping[str, Any]]) -> None:
        for region in regions:
            kind, name = region["type"], region.get("field")
            text = str(region.get("text") or "") if kind == "region_chunk" else ""
            if name in _REASONING:
                self._report_reasoning(kind, text)
            elif name == "content":
                self._writer.content(text)
            elif name == _CALLS and kind == "region_close":
                value = region.get("value")
                for call in value if isinstance(value, list) else [value]:
                    self._report_call(call)
            if name != _CALLS or kind == "region_close":
                self._pending = ""

    def _report_reasoning(self, kind: str, text: str) -> None:
        if kind == "region_open":
            self._writer.begin_reasoning()
        elif kind == "region_close":
            self._writer.end_reasoning()
        else:
            self._writer.reasoning(text)

    def _report_call(self, call: Any) -> None:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            self._writer.content(self._pending)
            return
        arguments = function.get("arguments", {})
        is_text = isinstance(arguments, str)
        self._writer.begin_call(function["name"])
        self._writer.arguments(arguments if is_text else json.dumps(arguments, ensure_ascii=False))
