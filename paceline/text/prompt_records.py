"""Read prompts from JSON Lines and plain text files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import ConfigError
from paceline.text.messages import checked_messages, text_of
from paceline.util.files import parse_json_line
from paceline.util.text_files import read_text
from paceline.util.unicode import require_text

_FIELDS = ("prompt", "text", "turns", "messages")


class PromptRecord(NamedTuple):
    """A prompt read from a file.

    Attributes:
        text: Text of the prompt. For a conversation, the text of its last message.
        messages: Messages of the conversation. None if the prompt is a single text.
        id: Identifier of the prompt. None if the file does not specify one.
        category: Category of the prompt, such as "maths". None if the file does not specify one.
    """

    text: str
    messages: list[dict[str, Any]] | None
    id: str | None
    category: str | None


def read_prompt_file(path: Path) -> list[tuple[int, PromptRecord]]:
    """Return the prompts in a file, each with its line number.

    Args:
        path: File to read. In a .jsonl file, every line is a JSON object with one of the fields
            `prompt`, `text`, `turns` (only the first turn is used) and `messages`. The fields `id`
            and `category` are optional. In any other file, every line is a prompt. Empty lines are
            skipped.
    Raises:
        ConfigError: The file cannot be read, or a line is not a prompt. The error message contains
            the file and the line number.
    """
    try:
        # splitlines() would cut texts at U+2028 and the like.
        lines = read_text(path, "surrogateescape").split("\n")
    except OSError as error:
        raise ConfigError(
            f"the prompts {str(path)!r} cannot be read: {error.strerror}. Check the path."
        ) from error
    parse = _parse if path.suffix == ".jsonl" else _plain
    numbered = (
        (number, require_text(f"{path}:{number}", line.rstrip("\r")))
        for number, line in enumerate(lines, 1)
        if line.strip()
    )
    return [(number, parse(line, f"{path}:{number}")) for number, line in numbered]


def _plain(line: str, where: str) -> PromptRecord:
    return PromptRecord(line, None, None, None)


def _parse(line: str, where: str) -> PromptRecord:
    try:
        record = parse_json_line(line)
    except ValueError as error:
        raise ConfigError(
            f"{where}: got {line[:60]!r}; expected JSON. Correct the line. [{error}]"
        ) from error
    field = (
        next((name for name in _FIELDS if name in record), None)
        if isinstance(record, dict)
        else None
    )
    if field is None:
        raise ConfigError(
            f"{where}: got {line[:60]!r}; expected an object with one of the fields"
            f" {', '.join(_FIELDS)}. Add one of them."
        )
    identity, category = _name(record, "id", where), _name(record, "category", where)
    if field == "messages":
        messages = checked_messages(record[field], f"{where}: messages")
        return PromptRecord(text_of(messages[-1]), messages, identity, category)
    text = _text(record[field], field, where)
    return PromptRecord(require_text(where, text), None, identity, category)


def _text(value: Any, field: str, where: str) -> str:
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, str) and (field != "turns" or isinstance(value, list)):
        return first
    expected, fix = (
        ("a list of texts", 'Write ["TEXT"].')
        if field == "turns"
        else ("a text", "Use quotation marks.")
    )
    raise ConfigError(f"{where}: {field}: got {repr(value)[:60]}; expected {expected}. {fix}")


def _name(record: dict[str, Any], field: str, where: str) -> str | None:
    value = record.get(field)
    if value is not None and not isinstance(value, str | int):
        raise ConfigError(f"{where}: {field}: got {value!r}; expected a text. Use quotation marks.")
    return None if value is None else str(value)
