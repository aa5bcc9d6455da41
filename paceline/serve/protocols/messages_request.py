"""Convert requests of Anthropic's Messages API to chat requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from paceline.errors import ConfigError
from paceline.serve.protocols.parts import checked_chat
from paceline.serve.requests import ChatRequest, Speculation

Message = dict[str, Any]


class MessagesRequest(BaseModel):
    """Body of a request to /v1/messages; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    model: str | None = None
    messages: list[Any] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    seed: int | None = None
    speculation: bool | str | Speculation | None = None


def chat_of(body: MessagesRequest) -> ChatRequest:
    """Convert a request of the Messages API to a chat request.

    Raises:
        ConfigError: A message, a tool or the tool choice is invalid.
    """
    system = [] if body.system is None else [_system(body.system)]
    messages = [_messages(entry, f"messages.{at}") for at, entry in enumerate(body.messages)]
    choice, parallel = _choice(body.tool_choice)
    last = messages[-1][-1]
    continues = last["role"] == "assistant" and isinstance(last["content"], str)
    fields = {
        "model": body.model,
        "messages": [*system, *(message for several in messages for message in several)],
        "max_tokens": body.max_tokens,
        "continue_final_message": continues or None,
        "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "thinking_token_budget": _budget(body.thinking),
        "stop": body.stop_sequences,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "seed": body.seed,
        "speculation": body.speculation,
    }
    return checked_chat(fields)


def _system(system: str | list[Any]) -> Message:
    text = system if isinstance(system, str) else _text(system, "system")
    return {"role": "system", "content": text}


def _text(blocks: Any, where: str) -> str:
    """Return the text in a string or in a list of text blocks.

    Args:
        blocks: String or list: the content of a tool result, or the field `system`.
        where: Name of the content in error messages.
    Raises:
        ConfigError: `blocks` contains anything but text.
    """
    if isinstance(blocks, str):
        return blocks
    if not isinstance(blocks, list):
        raise ConfigError(f"{where}: expected a string or a list of text blocks.")
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where}: got a block without text; expected text blocks.")
    return "\n".join(map(str, texts))


def _messages(message: Any, where: str) -> list[Message]:
    """Convert a message to chat messages; each tool result becomes a separate message.

    Args:
        message: Message in the format of the Messages API.
        where: Name of the message in error messages.
    Raises:
        ConfigError: The message or one of its content blocks is invalid.
    """
    if not isinstance(message, Mapping):
        raise ConfigError(f"{where}: expected an object with role and content.")
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    results: list[Message] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning = ""
    for at, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            parts.append({"type": "text", "text": block.get("text")})
        elif kind == "image":
            parts.append(_image(block.get("source"), f"{where}.content.{at}.source"))
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result":
            results.append(_result(block, f"{where}.content.{at}.content"))
        elif kind == "thinking":
            reasoning += str(block.get("thinking", ""))
        elif kind != "redacted_thinking":
            raise ConfigError(
                f"{where}.content.{at}: got a block of type {kind!r}; expected text, image,"
                " tool_use, tool_result or thinking."
            )
    rest: Message = {"role": role, "content": parts or None}
    if calls:
        rest["tool_calls"] = calls
    if reasoning:
        rest["reasoning_content"] = reasoning
    return [*results, *([rest] if parts or calls or not results else [])]


def _image(source: Any, where: str) -> dict[str, Any]:
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        raise ConfigError(f"{where}: expected an image of type 'base64'.")
    url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(block: Mapping[str, Any], where: str) -> Message:
    text = _text(block.get("content") or "", where)
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}


def _tool(tool: Any) -> Any:
    if not isinstance(tool, Mapping) or "input_schema" not in tool:
        raise ConfigError("tools: expected tools with name and input_schema.")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool["input_schema"],
        "strict": tool.get("strict"),
    }
    return {"type": "function", "function": function}


def _choice(choice: Mapping[str, Any] | None) -> tuple[Any, bool | None]:
    """Return OpenAI's tool choice, and whether an answer may contain several calls."""
    if choice is None:
        return None, None
    kind = choice.get("type")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    choices = {"auto": "auto", "any": "required", "none": "none", "tool": named}
    if kind not in choices:
        raise ConfigError("tool_choice: expected the type 'auto', 'any', 'tool' or 'none'.")
    return choices[kind], choice.get("disable_parallel_tool_use") is not True


def _budget(thinking: Mapping[str, Any] | None) -> int | None:
    if thinking is None or thinking.get("type") != "enabled":
        return None
    tokens = thinking.get("budget_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ConfigError("thinking: expected budget_tokens, an integer of at least 0.")
    return tokens
