"""Build the grammar of a single tool call in each tool-call format.

Each public function receives the name of a tool, the JSON schema of the tool's arguments, and the
writer that collects the grammar's rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import ConfigError
from paceline.parsing.formats import deepseek, gemma4, harmony, hermes, mistral, qwen3_coder
from paceline.parsing.rules import RuleWriter
from paceline.parsing.values import is_text_only, json_of

Schema = Mapping[str, Any]


def _json_call(name: str, schema: Schema, rules: RuleWriter, key: str) -> str:
    before = rules.literal(f'{{"name": {json_of(name)}, "{key}": ')
    return f"{before} {rules.json(schema)} {rules.literal('}')}"


def hermes_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a JSON object between <tool_call> tags."""
    call = _json_call(name, schema, rules, "arguments")
    return f"{rules.literal(hermes.OPEN + chr(10))} {call} {rules.literal(chr(10) + hermes.CLOSE)}"


def llama3_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a JSON object with "name" and "parameters"."""
    return _json_call(name, schema, rules, "parameters")


def mistral_list_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a call that is one entry in a JSON list."""
    return _json_call(name, schema, rules, "arguments")


def mistral_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a Mistral call: [TOOL_CALLS]NAME[ARGS]JSON."""
    before = rules.literal(mistral.OPEN + name + mistral.ARGUMENTS)
    return f"{before} {rules.json(schema)}"


def harmony_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a gpt-oss message that calls a function."""
    before = rules.literal(
        f"{harmony.CHANNEL}commentary to=functions.{name} {harmony.CONSTRAIN}json{harmony.MESSAGE}"
    )
    return f"{before} {rules.json(schema)} {rules.literal('<|call|>')}"


def deepseek_v3_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a call with its arguments in a code block."""
    before = rules.literal(f"{deepseek.CALL_BEGIN}function{deepseek.SEPARATOR}{name}\n```json\n")
    return f"{before} {rules.json(schema)} {rules.literal(chr(10) + '```' + deepseek.CALL_END)}"


def deepseek_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a DeepSeek V3.1 call: name and arguments."""
    before = rules.literal(f"{deepseek.CALL_BEGIN}{name}{deepseek.SEPARATOR}")
    return f"{before} {rules.json(schema)} {rules.literal(deepseek.CALL_END)}"


def python_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a Python call with JSON values as arguments."""
    parts = [rules.literal(f"{name}(")]
    for index, (key, value, required) in enumerate(_properties(name, schema)):
        # The first argument is mandatory, so that a comma precedes each further argument.
        expression = f"{rules.literal((', ' if index else '') + key + '=')} {rules.json(value)}"
        parts.append(expression if required or index == 0 else f"({expression})?")
    return " ".join([*parts, rules.literal(")")])


def qwen3_coder_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a call with one tag per parameter.

    In this format, the model writes strings without quotes.
    """
    parts = [rules.literal(f"{qwen3_coder.OPEN}\n{qwen3_coder.FUNCTION}{name}>\n")]
    end = "\n</parameter>\n"
    for key, value, required in _properties(name, schema):
        before = rules.literal(f"{qwen3_coder.PARAMETER}{key}>\n")
        if not is_text_only(value):
            expression = f"{before} {rules.json(value)} {rules.literal(end)}"
        else:
            expression = f"{before} {_plain_text(f'{name}.{key}', value, end, rules)}"
        parts.append(expression if required else f"({expression})?")
    return " ".join([*parts, rules.literal(f"</function>\n{qwen3_coder.CLOSE}")])


def gemma4_call(name: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a call in Gemma 4's syntax."""
    return f"{rules.literal(f'{gemma4.OPEN}call:{name}')} {_gemma4_value(name, schema, rules)}" + (
        f" {rules.literal(gemma4.CLOSE)}"
    )


def _gemma4_value(where: str, schema: Schema, rules: RuleWriter) -> str:
    """Return the grammar expression for a value in Gemma 4's syntax."""
    if "properties" in schema or schema.get("type") == "object":
        parts = [rules.literal("{")]
        for index, (key, value, required) in enumerate(_properties(where, schema)):
            before = rules.literal(f"{',' if index else ''}{key}:")
            expression = f"{before} {_gemma4_value(f'{where}.{key}', value, rules)}"
            parts.append(expression if required or index == 0 else f"({expression})?")
        return rules.rule(" ".join([*parts, rules.literal("}")]))
    if is_text_only(schema):
        return f"{rules.literal(gemma4.QUOTE)} {_plain_text(where, schema, gemma4.QUOTE, rules)}"
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, Mapping):
        item = _gemma4_value(where, items, rules)
        comma = rules.literal(",")
        return rules.rule(f"{rules.literal('[')} ({item} ({comma} {item})*)? {rules.literal(']')}")
    if schema.get("type") in ("number", "integer", "boolean", "null"):
        return rules.json(schema)
    raise _unsupported(where)


def _plain_text(where: str, schema: Schema, end: str, rules: RuleWriter) -> str:
    """Return the grammar expression for an unquoted string followed by `end`."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        choices = " | ".join(rules.literal(f"{value}{end}") for value in values)
        return rules.rule(choices)
    if any(name in schema for name in ("pattern", "minLength", "maxLength", "format")):
        raise _unsupported(where)
    return rules.text_until(end)


def _properties(where: str, schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Return each property's name and schema, and whether the property is required.

    Required properties come first.
    """
    properties, required = schema.get("properties", {}), schema.get("required", ())
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    if set(required) - properties.keys():
        raise _unsupported(where)
    entries = []
    for name, value in properties.items():
        if not isinstance(value, Mapping):
            raise _unsupported(f"{where}.{name}")
        entries.append((name, {**value, **shared}, name in required))
    return sorted(entries, key=lambda entry: not entry[2])


def _unsupported(where: str) -> ConfigError:
    return ConfigError(
        f"tools: the schema of {where} has rules that the model's format of calls cannot express"
        " as a grammar. Simplify the schema, or use tool_choice 'auto' without 'strict'."
    )
