"""Prepare tool calls and tool definitions for chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import ConfigError

Message = dict[str, Any]

# Hermes format: most small models have seen it in training, and `paceline.parsing` reads it.
_INSTRUCTIONS = """You can call functions. Their definitions, one per line:
<tools>
{definitions}
</tools>
To call a function, write a JSON object with its name and arguments in this form:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def with_argument_objects(messages: Sequence[Message], where: str) -> list[Message]:
    """Convert tool-call arguments from JSON text to dictionaries.

    Args:
        messages: Messages whose role and content are already checked.
        where: Name of the message list in error messages.
    Raises:
        ConfigError: A message's `tool_calls` is not a list of objects, or the arguments of a call
            are text that is not a JSON object.
    """
    return [
        {**message, "tool_calls": _decoded(message["tool_calls"], f"{where}.{index}.tool_calls")}
        if "tool_calls" in message
        else message
        for index, message in enumerate(messages)
    ]


def has_calls(message: Mapping[str, Any]) -> bool:
    """Return whether a message contains tool calls or the result of a tool call."""
    return bool(message.get("tool_calls")) or message["role"] == "tool"


def with_written_tools(
    messages: Sequence[Message], definitions: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """Write tool definitions, calls and results into the messages as text.

    The result suits chat templates that do not support tools. The tool definitions become part of
    the system message.

    Args:
        messages: Checked messages whose content is a string.
        definitions: Tool definitions as JSON objects. Empty if there are no tools.
    """
    written = [_written(message) for message in messages]
    if not definitions:
        return written
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in definitions)
    instructions = _INSTRUCTIONS.format(definitions=lines)
    if written[0]["role"] in ("system", "developer"):
        first = {**written[0], "content": f"{written[0]['content']}\n\n{instructions}"}
        return [first, *written[1:]]
    return [{"role": "system", "content": instructions}, *written]


def _decoded(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise ConfigError(f"{where}: got {ascii(calls)[:60]}; expected a list of tool calls.")
    return [_decoded_call(call, f"{where}.{index}") for index, call in enumerate(calls)]


def _decoded_call(call: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ConfigError(
            f"{where}.function.arguments: got {function['arguments'][:60]!a}; expected the text of"
            " a JSON object."
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _written(message: Message) -> Message:
    """Write a message's tool calls or tool result into its text."""
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message['content']}\n</tool_response>",
        }
    calls = [
        {"name": call["function"].get("name"), "arguments": call["function"].get("arguments", {})}
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("function"), Mapping)
    ]
    if not calls:
        return message
    texts = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    content = "\n".join(filter(None, [message["content"], *texts]))
    return {"role": message["role"], "content": content}
