"""Convert requests of OpenAI's Responses API to chat requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from paceline.errors import ConfigError
from paceline.serve.protocols.parts import checked_chat
from paceline.serve.requests import Absent, ChatRequest, Speculation

Message = dict[str, Any]


def _not_in_background(value: Any) -> None:
    if value:
        raise ValueError("false: leave it out")


class ResponsesRequest(BaseModel):
    """Body of a request to /v1/responses; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    model: str | None = None
    input: str | list[Any]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None
    seed: int | None = None
    speculation: bool | str | Speculation | None = None
    background: Annotated[Any, AfterValidator(_not_in_background)] = None
    conversation: Absent = None
    prompt: Absent = None


def chat_of(body: ResponsesRequest, earlier: Sequence[Message]) -> ChatRequest:
    """Convert a request of the Responses API to a chat request.

    Args:
        body: Body of the request.
        earlier: Messages of the conversation that the request continues, without its
            instructions.
    Raises:
        ConfigError: An item, a tool or the format is invalid.
    """
    system = [] if body.instructions is None else [_message("system", body.instructions)]
    fields = {
        "model": body.model,
        "messages": [*system, *earlier, *messages_of(body.input)],
        "max_tokens": body.max_output_tokens,
        "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": (body.reasoning or {}).get("effort"),
        "response_format": _format(body.text),
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "speculation": body.speculation,
    }
    return checked_chat(fields)


def messages_of(items: str | Sequence[Any]) -> list[Message]:
    """Convert input or output items of the Responses API to chat messages.

    Args:
        items: List of items, or the text of a single user message.
    Raises:
        ConfigError: The type of an item is not supported.
    """
    if isinstance(items, str):
        return [_message("user", items)]
    messages: list[Message] = []
    reasoning = ""
    for at, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            content = _content(item.get("content"), f"input.{at}.content")
            messages.append(_message(item.get("role"), content))
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "function_call_output":
            output = _content(item.get("output"), f"input.{at}.output")
            messages.append({**_message("tool", output), "tool_call_id": item.get("call_id")})
        elif kind == "reasoning":
            parts = item.get("content") or ()
            reasoning = "".join(part.get("text", "") for part in parts)
            continue
        else:
            raise ConfigError(
                f"input.{at}: got an item of type {kind!r}; expected message, function_call,"
                " function_call_output or reasoning."
            )
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = reasoning
        reasoning = ""
    return messages


def _message(role: Any, content: Any) -> Message:
    return {"role": "system" if role == "developer" else role, "content": content}


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(part, f"{where}.{at}") for at, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    raise ConfigError(
        f"{where}: got a part of type {kind!r}; expected input_text, output_text or input_image."
    )


def _add_call(messages: list[Message], item: Mapping[str, Any]) -> None:
    """Add a tool call to the assistant message that contains the calls of the turn."""
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _tool(tool: Any) -> Any:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return tool  # `tool_use` rejects it
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool.get(name) for name in names}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _format(text: Mapping[str, Any] | None) -> dict[str, Any] | None:
    given = (text or {}).get("format")
    if not isinstance(given, Mapping):
        return None
    if given.get("type") != "json_schema":
        return dict(given)
    if not isinstance(given.get("schema"), Mapping):
        raise ConfigError("text: the format has no schema. Add a JSON schema as format.schema.")
    schema = {"name": given.get("name"), "schema": given["schema"]}
    return {"type": "json_schema", "json_schema": schema}
