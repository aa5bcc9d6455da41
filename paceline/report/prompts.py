"""Read a benchmark's prompts from JSON Lines.

Each line has the fields `id`, `category` and `turns`; only the first turn is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import demo
from paceline.errors import ConfigError
from paceline.report.report_settings import HEAD_TOKENS
from paceline.text.conversations import chat_ids
from paceline.text.tokens import text_ids
from paceline.util.config import require_range
from paceline.util.files import parse_json
from paceline.util.text_files import read_text

_FIELDS = ("id", "category", "turns")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in a benchmark.

    Attributes:
        id: Unique name of the prompt.
        category: Group of the prompt in reports.
        text: User message.
    """

    id: str
    category: str
    text: str


def load_prompts(paths: Sequence[str | Path] = (), limit: int = 0, every: int = 1) -> list[Prompt]:
    """Read prompts from JSONL files.

    Args:
        paths: Files to read. Default: the built-in prompts.
        limit: Maximum number of prompts per file; 0 reads all.
        every: Read only every n-th line. This selection is applied before `limit`.
    Raises:
        ConfigError: A file is missing, a line is not a prompt (the message names file and line),
            or there are no prompts.
    """
    require_range("bench", "limit", limit, 0)
    require_range("bench", "every", every, 1)
    prompts: list[Prompt] = []
    for path in [Path(path) for path in paths] or [demo.PROMPTS]:
        entries = _read(path)[::every]
        prompts.extend(entries[:limit] if limit else entries)
    if not prompts:
        raise ConfigError(
            f"bench: got no prompts in {', '.join(map(str, paths))}; expected at least one line."
        )
    return prompts


def encode(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Return the token ids of a prompt, using the chat template if there is one.

    Raises:
        ConfigError: The prompt has no tokens, or the tokenizer or the chat template rejects it.
    """
    where = f"prompt {prompt.id!r}"
    if getattr(tokenizer, "chat_template", None):
        ids = chat_ids(tokenizer, [{"role": "user", "content": prompt.text}], where)
    else:
        ids = text_ids(tokenizer, prompt.text, where)
    if not ids:
        raise ConfigError(
            f"prompt {prompt.id!r}: got no tokens; expected at least one. Give it some text."
        )
    return ids


def shortened(ids: list[int], limit: int) -> list[int]:
    """Return at most `limit` ids: the first 4 ids and the last `limit` - 4 ids."""
    return ids if len(ids) <= limit else ids[:HEAD_TOKENS] + ids[len(ids) - (limit - HEAD_TOKENS) :]


def cut_note(count: int) -> str:
    """Return a note that says how many prompts were shortened."""
    longer, keeps = (
        ("1 prompt was", "It keeps its")
        if count == 1
        else (f"{count} prompts were", "They keep their")
    )
    return (
        f"{longer} too long for the context with an answer, and cut. {keeps} first {HEAD_TOKENS}"
        " and last tokens."
    )


def _read(path: Path) -> list[Prompt]:
    try:
        lines = read_text(path).split("\n")  # splitlines() would cut texts at U+2028 and the like
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The prompts {str(path)!r} cannot be read: {error}. Check the name."
        ) from error
    return [
        _parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()
    ]


def _parse(line: str, where: str) -> Prompt:
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise ConfigError(
            f"{where}: got {line[:60]!r}; expected JSON. Correct the line. [{error}]"
        ) from error
    missing = [name for name in _FIELDS if not isinstance(entry, dict) or name not in entry]
    if missing:
        expected = f"expected an object with {', '.join(_FIELDS)}"
        raise ConfigError(f"{where}: got {line[:60]!r}; {expected}. Add {', '.join(missing)}.")
    turns = entry["turns"]
    if (
        not isinstance(turns, list)
        or not turns
        or not isinstance(turns[0], str)
        or not turns[0].strip()
    ):
        raise ConfigError(
            f"{where}: turns: got {str(turns)[:60]!r}; expected a list of texts, the first one not"
            " empty."
        )
    if not isinstance(entry["id"], str | int) or not isinstance(entry["category"], str):
        raise ConfigError(
            f"{where}: id and category: got {entry['id']!r} and {entry['category']!r}; expected"
            " texts."
        )
    return Prompt(str(entry["id"]), entry["category"], turns[0])
