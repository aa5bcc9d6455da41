"""Define the events that parsers report, and the message that the events form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class ReasoningText(NamedTuple):
    """The next fragment of the reasoning before the answer."""

    text: str


class ContentText(NamedTuple):
    """The next fragment of the answer's text."""

    text: str


class CallStart(NamedTuple):
    """The start of a tool call.

    Attributes:
        call: Index of the call in the answer, starting from 0.
        name: Name of the tool.
    """

    call: int
    name: str


class ArgumentsText(NamedTuple):
    """The next fragment of a tool call's arguments.

    Attributes:
        call: Index of the call in the answer, starting from 0.
        text: Fragment of the arguments' JSON text.
    """

    call: int
    text: str


AnswerEvent = ReasoningText | ContentText | CallStart | ArgumentsText


@dataclass(slots=True)
class ToolCall:
    """A complete tool call.

    Attributes:
        name: Name of the tool.
        arguments: Arguments as JSON text.
    """

    name: str
    arguments: str = ""


@dataclass(slots=True)
class AssistantMessage:
    """An answer, split into text, reasoning and tool calls.

    Attributes:
        content: Text of the answer, without reasoning and tool calls.
        reasoning: Reasoning before the answer; "" if there is none.
        tool_calls: Tool calls, in order.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[AnswerEvent]) -> None:
        """Extend the message with the events that a parser reported."""
        for event in events:
            match event:
                case ReasoningText(text):
                    self.reasoning += text
                case ContentText(text):
                    self.content += text
                case CallStart(_, name):
                    self.tool_calls.append(ToolCall(name))
                case ArgumentsText(call, text):
                    self.tool_calls[call].arguments += text


class EventWriter:
    """Collects events, and drops white space between the parts of an answer.

    The writer drops white space around reasoning and tool calls. It preserves white space at the
    end of an answer without tool calls.

    Attributes:
        events: Events that `take` has not returned yet.
        num_calls: Number of calls so far.
        in_reasoning: Whether the reasoning has begun but not ended.
    """

    def __init__(self) -> None:
        self.events: list[AnswerEvent] = []
        self.num_calls = 0
        self.in_reasoning = False
        self._spaces = ""  # white space after the last text, not reported yet
        self._strips = False  # whether to drop white space before the next text

    def reasoning(self, text: str) -> None:
        """Report a fragment of the reasoning."""
        if shown := self._shown(text):
            self.events.append(ReasoningText(shown))

    def begin_reasoning(self) -> None:
        """Begin the reasoning, and drop white space at its start."""
        self.in_reasoning = True
        self._spaces, self._strips = "", True

    def end_reasoning(self) -> None:
        """End the reasoning, and drop white space around its end."""
        self.in_reasoning = False
        self._spaces, self._strips = "", True

    def content(self, text: str) -> None:
        """Report a fragment of the answer's text."""
        if shown := self._shown(text):
            self.events.append(ContentText(shown))

    def begin_call(self, name: str) -> None:
        """Report the start of a tool call."""
        self._spaces, self._strips = "", True
        self.events.append(CallStart(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Report a fragment of the most recent call's arguments."""
        if text:
            self.events.append(ArgumentsText(self.num_calls - 1, text))

    def finish(self) -> None:
        """Report the white space at the end of an answer that has no tool calls."""
        if self._spaces and not self.num_calls:
            self.events.append(ContentText(self._spaces))
        self._spaces = ""

    def take(self) -> list[AnswerEvent]:
        """Return the events since the previous `take`, with adjacent texts merged."""
        events, self.events = self.events, []
        return joined(events)

    def _shown(self, text: str) -> str:
        """Return the text to report, and hold back the white space at its end."""
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        text = self._spaces + text
        shown = text.rstrip()
        self._spaces = text[len(shown) :]
        return shown


def joined(events: Iterable[AnswerEvent]) -> list[AnswerEvent]:
    """Merge adjacent events that continue the same text or the same arguments."""
    result: list[AnswerEvent] = []
    for event in events:
        last = result[-1] if result else None
        match last, event:
            case (ReasoningText(before), ReasoningText(text)):
                result[-1] = ReasoningText(before + text)
            case (ContentText(before), ContentText(text)):
                result[-1] = ContentText(before + text)
            case (ArgumentsText(call, before), ArgumentsText(same, text)) if call == same:
                result[-1] = ArgumentsText(call, before + text)
            case _:
                result.append(event)
    return result
