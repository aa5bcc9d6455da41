"""Validate the tool definitions and the tool choice of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.errors import ConfigError, did_you_mean
from paceline.parsing.settings import MAX_TOOLS, TOOL_NAME

ToolDefinition = Mapping[str, Any] | Callable[..., Any]
_ANNOTATIONS = {"type", "title", "description", "$schema", "$id"}
Choice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: Name of the function.
        parameters: JSON schema of the function's arguments, of type "object".
        definition: Complete definition of the tool, which the chat template receives.
        strict: Whether a grammar forces calls to match the schema even if no call is required.
    """

    name: str
    parameters: Mapping[str, Any]
    definition: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, and how the model may use them.

    Attributes:
        tools: Tools that the model sees.
        must_call: Whether the answer must be a tool call.
        callable_tools: Tools that the grammar allows the model to call.
        parallel: Whether an answer may contain several calls.
    """

    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    callable_tools: tuple[Tool, ...] = field(default=())
    parallel: bool = True

    @property
    def definitions(self) -> list[Mapping[str, Any]] | None:
        """Return the tool definitions for the chat template; None if there are no tools."""
        return [tool.definition for tool in self.tools] or None

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Return the argument schemas of the tools, by name."""
        return {tool.name: tool.parameters for tool in self.tools}

    @property
    def is_constrained(self) -> bool:
        """Return whether a grammar must constrain the model's tool calls."""
        return bool(self.tools) and (
            self.must_call or not self.parallel or any(tool.strict for tool in self.tools)
        )


NO_TOOLS = ToolUse()


def tool_use(
    tools: Any, tool_choice: Any = None, parallel: bool = True, where: str = "tools"
) -> ToolUse:
    """Validate the tools and the tool choice of a request.

    Args:
        tools: Definitions in OpenAI's format, or Python functions with type hints and docstrings.
            None or an empty list means no tools.
        tool_choice: "auto" (default), "none", "required", or {"type": "function", "function":
            {"name": NAME}}. With "none", the model does not see the tools.
        parallel: Whether an answer may contain several calls.
        where: Name for the argument `tools` in error messages.
    Raises:
        ConfigError: A tool definition or the tool choice is invalid.
    """
    checked = _checked_tools(tools, where)
    choice, name = _checked_choice(tool_choice)
    if not checked:
        if choice == "required" or name is not None:
            raise ConfigError("tool_choice: got a required call without tools. Add tools.")
        return NO_TOOLS
    if choice == "none":
        return NO_TOOLS
    if name is None:
        return ToolUse(checked, choice == "required", checked, parallel)
    named = tuple(tool for tool in checked if tool.name == name)
    if not named:
        names = [tool.name for tool in checked]
        raise ConfigError(
            f"tool_choice: got the function {name[:60]!r}, which is not among the tools."
            f"{did_you_mean(name[:60], names)}"
        )
    return ToolUse(checked, True, named, False)


def _checked_tools(tools: Any, where: str) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise ConfigError(f"{where}: got {_shown(tools)}; expected a list of tools.")
    if len(tools) > MAX_TOOLS:
        raise ConfigError(f"{where}: got {len(tools)} tools; expected at most {MAX_TOOLS}.")
    checked = tuple(_checked(tool, f"{where}.{index}") for index, tool in enumerate(tools))
    names = [tool.name for tool in checked]
    double = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if double is not None:
        raise ConfigError(f"{where}: got two tools with the name {double!r}. Rename one of them.")
    return checked


def _checked(tool: Any, where: str) -> Tool:
    if callable(tool):
        tool = _described(tool, where)
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        shown = _shown(tool.get("type") if isinstance(tool, Mapping) else tool)
        raise ConfigError(f"{where}: got {shown}; expected a tool of type 'function'.")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise ConfigError(
            f"{where}.function: got {_shown(function)}; expected an object with name and"
            " parameters."
        )
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise ConfigError(
            f"{where}.function.name: got {_shown(name)}; expected 1 to 64 letters, digits, dots,"
            " underscores or hyphens."
        )
    schema = _checked_schema(function.get("parameters"), f"{where}.function.parameters")
    shown_function = {key: value for key, value in function.items() if value is not None}
    definition = {
        "type": "function",
        "function": {**shown_function, "parameters": schema},
    }
    return Tool(name, schema, definition, function.get("strict") is True)


def _checked_schema(schema: Any, where: str) -> dict[str, Any]:
    if schema is None:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigError(
            f"{where}: got {_shown(schema)}; expected a JSON schema of type 'object'."
        )
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where}: got a schema that is not JSON: {error}. Correct it."
        ) from error
    has_rules = bool(schema.keys() - _ANNOTATIONS)  # without rules, there are no arguments
    return {"type": "object", **schema, **({} if has_rules else {"properties": {}})}


def _checked_choice(choice: Any) -> tuple[Choice, str | None]:
    if choice in (None, "auto"):
        return "auto", None
    if choice == "none":
        return "none", None
    if choice == "required":
        return "required", None
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(name, str) and choice.get("type", "function") == "function":
        return "required", name
    raise ConfigError(
        f"tool_choice: got {_shown(choice)}; expected 'none', 'auto', 'required', or {{'type':"
        " 'function', 'function': {'name': '...'}}."
    )


def _described(function: Callable[..., Any], where: str) -> Mapping[str, Any]:
    """Build a tool definition from a Python function's type hints and docstring."""
    from transformers.utils import get_json_schema

    try:
        definition: Mapping[str, Any] = get_json_schema(function)
    except Exception as error:  # transformers raises errors of many types
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{where}: got a function that cannot be described [{reason}]; expected type hints and"
            " a docstring with every argument."
        ) from error
    return definition


def _shown(value: Any) -> str:
    shown = "nothing" if value is None else ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
