"""Validate chat messages, and convert them to plain dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.errors import ConfigError
from paceline.text.tool_messages import with_argument_objects
from paceline.util.unicode import require_text

Message = dict[str, Any]
PartReader = Callable[[Mapping[str, Any], str], dict[str, Any]]

_CALLS = ("tool_calls", "function_call")


def checked_messages(
    messages: Any, where: str, read_part: PartReader | None = None
) -> list[Message]:
    """Validate messages, and return them as plain dictionaries.

    Every message must have the fields `role` and `content`. The content is a string or a list of
    text parts. The content may be null only in an assistant's message with tool calls.

    The function removes all other fields that are null, and converts tool-call arguments from JSON
    text to objects. Other fields are unchanged.

    Args:
        messages: The caller's messages, from JSON or Python code.
        where: Name of the message list in error messages.
        read_part: Function that validates and loads a part other than text, such as an image. Its
            arguments are the part and the part's name in error messages. If `read_part` is None,
            the function rejects such parts.
    Raises:
        ConfigError: A message is invalid; the error names the field and the index.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ConfigError(
            f"{where}: got {show(messages)}; expected a list of messages with role and content."
            " Write [{'role': 'user', 'content': '...'}]."
        )
    checked = [
        _checked(message, f"{where}.{index}", read_part) for index, message in enumerate(messages)
    ]
    return with_argument_objects(checked, where)


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a checked message, joining the texts of its parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


def _checked(message: Any, where: str, read_part: PartReader | None) -> Message:
    if not isinstance(message, Mapping):
        raise ConfigError(
            f"{where}: got {show(message)}; expected an object with role and content."
        )
    fields = {name: value for name, value in message.items() if value is not None}
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not role:
        raise ConfigError(
            f"{where}.role: got {show(message.get('role'))}; expected a string, such as 'user'"
            " or 'assistant'."
        )
    require_text(f"{where}.role", role)
    if not fields.get("tool_calls", True):
        del fields["tool_calls"]  # an empty list: no calls
    if content is None:
        if role != "assistant" or not any(name in fields for name in _CALLS):
            raise ConfigError(
                f"{where}.content: got nothing; expected text. Only an assistant's message with"
                " tool_calls can omit it."
            )
        return {**fields, "content": None}
    return {**fields, "content": _content(content, f"{where}.content", read_part)}


def _content(content: Any, where: str, read_part: PartReader | None) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return require_text(where, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes) or not content:
        raise ConfigError(
            f"{where}: got {show(content)}; expected a string or a list of text parts."
        )
    return [_part(part, f"{where}.{index}", read_part) for index, part in enumerate(content)]


def _part(part: Any, where: str, read_part: PartReader | None) -> dict[str, Any]:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        if read_part is not None and isinstance(part, Mapping) and part.get("type") is not None:
            return read_part(part, where)
        shown = show(part.get("type") if isinstance(part, Mapping) else part)
        raise ConfigError(
            f"{where}: got {shown}; expected a text part, {{'type': 'text', 'text': '...'}}."
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise ConfigError(f"{where}.text: got {show(text)}; expected a string.")
    return {"type": "text", "text": require_text(f"{where}.text", text)}


def show(value: Any) -> str:
    """Format a value for an error message, in ASCII and shortened to 60 characters."""
    if value is None:
        return "nothing"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
