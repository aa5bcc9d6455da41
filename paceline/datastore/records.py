"""Turn the records in JSON Lines files and data sets into texts or token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from paceline.errors import ConfigError
from paceline.text.conversations import chat_text
from paceline.text.messages import Message, checked_messages, text_of
from paceline.util.files import parse_json_line
from paceline.util.unicode import require_text

_FIELDS = "text, messages (a list of {role, content}), or prompt and output"
_PROMPT_FIELDS, _NAME_FIELDS = {"prompt", "turns"}, {"id", "category"}  # of prompt files


def parse_record(source: str, line: str) -> Any:
    """Parse a line of JSON.

    Args:
        source: Description of the line for errors, such as "a.jsonl:3".
        line: Line to parse.
    Raises:
        ConfigError: The line is not valid UTF-8 or not valid JSON.
    """
    require_text(source, line)
    try:
        return parse_json_line(line)
    except ValueError as error:
        raise ConfigError(
            f"{source}: it is not JSON ({error}). Convert it to JSON Lines, with one record per"
            " line."
        ) from error


def record_parts(
    source: str, record: Any, tokenizer: Any, answers_only: bool
) -> list[str | list[int]]:
    """Return the texts or token ids that make up a record's document.

    Args:
        source: Description of the record for errors, such as "a.jsonl:3".
        record: Parsed record.
        tokenizer: transformers tokenizer; its chat template, if any, applies to conversations.
        answers_only: Whether to use only the assistant's messages or the output.
    Raises:
        ConfigError: The record has none of the expected fields.
    """
    if isinstance(record, Mapping):
        text, messages = record.get("text"), record.get("messages")
        prompt, output = record.get("prompt", ""), record.get("output")
        if isinstance(text, str):
            return [text]
        if messages is not None:
            return _conversation(
                source, checked_messages(messages, f"{source}: messages"), tokenizer, answers_only
            )
        if _is_part(output) and _is_part(prompt):
            return [output] if answers_only else [prompt, output]
        if is_prompt(record):
            raise ConfigError(
                f"{source}: got a prompt without an answer; expected {_FIELDS}. Record answers with"
                " `paceline record`."
            )
    raise ConfigError(
        f"{source}: got a record of {described(record)}; expected {_FIELDS}. Rename its fields, or"
        " leave it out."
    )


def described(record: Any) -> str:
    """Return the names of a record's fields, or its type if it has none."""
    fields = ", ".join(map(str, record)) if isinstance(record, Mapping) else type(record).__name__
    return fields or "nothing"


def is_prompt(record: Any) -> bool:
    """Return whether a record is from a prompt file and therefore has no answer."""
    fields = set(record) if isinstance(record, Mapping) else set()
    return bool(_PROMPT_FIELDS & fields) and fields <= _PROMPT_FIELDS | _NAME_FIELDS


def _is_part(value: Any) -> TypeGuard[str | list[int]]:
    return isinstance(value, str) or (
        isinstance(value, list) and all(type(token) is int for token in value)
    )


def _conversation(
    source: str, messages: list[Message], tokenizer: Any, answers_only: bool
) -> list[str | list[int]]:
    if answers_only:
        return [
            "\n".join(text_of(message) for message in messages if message["role"] == "assistant")
        ]
    if getattr(tokenizer, "chat_template", None):
        return [chat_text(tokenizer, messages, source)]
    return ["\n".join(map(text_of, messages))]
