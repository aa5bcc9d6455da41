"""Parse tool calls that are JSON objects with a name and arguments."""

from __future__ import annotations

from collections.abc import Generator

from paceline.parsing.events import EventWriter
from paceline.parsing.json_text import copy_value, decoded_string, read_value
from paceline.parsing.text_source import TextSource

_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("type", "id")  # keys that some models add


def read_call_object(source: TextSource, writer: EventWriter) -> Generator[None, None, str | None]:
    """Parse a tool call from a JSON object such as {"name": "f", "arguments": {}}.

    The parser reports the call to `writer` as soon as it has read the call's name. The arguments
    may also be a string that contains JSON text.

    Args:
        source: Unread text, which starts with the object.
        writer: Writer that receives the call.
    Returns:
        None if the object is a call; otherwise, the text that was read.
    """
    return (yield from _CallObject(source, writer).read())


class _CallObject:
    """Parses one JSON object that may be a tool call."""

    def __init__(self, source: TextSource, writer: EventWriter) -> None:
        self._source, self._writer = source, writer
        self._raw = ""  # text of the object so far, in case the object is not a call
        self._early = ""  # arguments that came before the name
        self._named = self._has_arguments = False

    def read(self) -> Generator[None, None, str | None]:
        """Read the object; return its text if it is not a tool call, otherwise None."""
        if not (yield from self._take("{")):
            return self._raw
        while (yield from self._read_entry()):
            if (yield from self._take(",")):
                continue
            if (yield from self._take("}")) and self._named and not self._has_arguments:
                self._writer.arguments("{}")
            break
        return None if self._named else self._raw

    def _take(self, literal: str) -> Generator[None, None, bool]:
        self._raw += yield from self._source.skip_spaces()
        matches = yield from self._source.take(literal)
        self._raw += literal if matches else ""
        return matches

    def _read_entry(self) -> Generator[None, None, bool]:
        """Read one key and its value; return False if a tool call cannot contain them."""
        self._raw += yield from self._source.skip_spaces()
        key = yield from self._read_string()
        if key is None or not (yield from self._take(":")):
            return False
        self._raw += yield from self._source.skip_spaces()
        if key == "name" and not self._named:
            return (yield from self._read_name())
        if key in _ARGUMENTS and not self._has_arguments:
            return (yield from self._read_arguments())
        if key in _OTHERS or self._named:
            return (yield from self._read_value())[1]
        return False

    def _read_value(self) -> Generator[None, None, tuple[str, bool]]:
        text, complete = yield from read_value(self._source)
        self._raw += text
        return text, complete

    def _read_string(self) -> Generator[None, None, str | None]:
        if not (yield from self._source.starts_with('"')):
            return None
        text, complete = yield from self._read_value()
        return decoded_string(text) if complete else None

    def _read_name(self) -> Generator[None, None, bool]:
        name = yield from self._read_string()
        if not name:
            return False
        self._named = True
        self._writer.begin_call(name)
        self._writer.arguments(self._early)
        return True

    def _read_arguments(self) -> Generator[None, None, bool]:
        self._has_arguments = True
        if (yield from self._source.starts_with('"')):
            text = yield from self._read_string()
            self._write(text or "{}")
            return text is not None
        if self._named:
            return (yield from copy_value(self._source, self._writer.arguments))
        self._early, complete = yield from self._read_value()
        return complete

    def _write(self, arguments: str) -> None:
        if self._named:
            self._writer.arguments(arguments)
        else:
            self._early = arguments
