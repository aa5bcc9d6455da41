"""Read the prompts of a benchmark from files, and encode them.

`read_prompt_file` describes the format of the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline import demo
from paceline.errors import ConfigError
from paceline.report.report_settings import HEAD_TOKENS
from paceline.text.conversations import chat_ids
from paceline.text.prompt_records import PromptRecord, read_prompt_file
from paceline.text.tokens import text_ids
from paceline.util.config import require_range

NO_CATEGORY = "other"  # category of prompts without the field `category`


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in a benchmark.

    Attributes:
        id: Unique name of the prompt.
        category: Category by which reports group the prompt.
        text: The user's message. In a conversation, the text of the last message.
        messages: Messages of a conversation, which requires a chat template. None (default) means
            that `text` is the only message.
    """

    id: str
    category: str
    text: str
    messages: tuple[dict[str, Any], ...] | None = None


def load_prompts(paths: Sequence[str | Path] = (), limit: int = 0, every: int = 1) -> list[Prompt]:
    """Read prompts from JSON Lines or plain text files.

    If several prompts have the same id, the function replaces this id with the file name and the
    line number.

    Args:
        paths: Files to read. A file that occurs twice is read only once. Default: the built-in
            prompts.
        limit: Maximum number of prompts per file. 0 reads all prompts.
        every: Interval between prompts to read: a value of n reads the first prompt of each file
            and every n-th prompt after it. `limit` applies to the prompts that remain.
    Raises:
        ConfigError: A file is missing, a line is not a prompt, or there are no prompts. If a line
            is not a prompt, the error message contains the file and the line number.
    """
    require_range("bench", "limit", limit, 0)
    require_range("bench", "every", every, 1)
    prompts: dict[str, Prompt] = {}  # by file and line
    for path in [Path(path) for path in paths] or [demo.PROMPTS]:
        _require_one_file(path)
        entries = list(_read(path).items())[::every]
        prompts |= dict(entries[:limit] if limit else entries)
    if not prompts:
        raise ConfigError(f"{', '.join(map(str, paths))}: there are no prompts. Add one per line.")
    counts = Counter(prompt.id for prompt in prompts.values())
    return [
        prompt if counts[prompt.id] == 1 else replace(prompt, id=where)
        for where, prompt in prompts.items()
    ]


def encode(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Encode a prompt, with the chat template if the tokenizer has one.

    Raises:
        ConfigError: The prompt has no tokens, or the tokenizer or the chat template rejects it.
    """
    where = f"prompt {prompt.id!r}"
    if getattr(tokenizer, "chat_template", None):
        messages = prompt.messages or ({"role": "user", "content": prompt.text},)
        ids = chat_ids(tokenizer, list(messages), where)
    elif prompt.messages is not None:
        raise ConfigError(
            f"{where}: got messages, but the tokenizer has no chat template. Use the field prompt."
        )
    else:
        ids = text_ids(tokenizer, prompt.text, where)
    if not ids:
        raise ConfigError(
            f"prompt {prompt.id!r}: got no tokens; expected at least one. Give it some text."
        )
    return ids


def shortened(ids: list[int], limit: int) -> list[int]:
    """Shorten a prompt to `limit` tokens: the first 4 and the last `limit` - 4."""
    return ids if len(ids) <= limit else ids[:HEAD_TOKENS] + ids[len(ids) - (limit - HEAD_TOKENS) :]


def cut_note(count: int) -> str:
    """Return a note that tells the user that `count` prompts were shortened."""
    longer, keeps = (
        ("1 prompt was", "It keeps its")
        if count == 1
        else (f"{count} prompts were", "They keep their")
    )
    return (
        f"{longer} shortened to leave room for an answer in the context. {keeps} first"
        f" {HEAD_TOKENS} tokens and last tokens."
    )


def _require_one_file(path: Path) -> None:
    if "," in path.name and not path.exists():
        raise ConfigError(
            f"the prompts {str(path)!r} cannot be read: there is no such file. Repeat --prompts for"
            " each file."
        )


def _read(path: Path) -> dict[str, Prompt]:
    """Read the prompts in a file, with keys such as "prompts.jsonl:7" (line 7)."""
    return {
        f"{path}:{number}": _prompt_of(record, path, number)
        for number, record in read_prompt_file(path)
    }


def _prompt_of(record: PromptRecord, path: Path, number: int) -> Prompt:
    if not record.text.strip():
        raise ConfigError(
            f"{path}:{number}: got {record.text[:60]!r}; expected a prompt that is not empty."
        )
    messages = None if record.messages is None else tuple(record.messages)
    return Prompt(
        record.id or f"{path.stem}:{number}", record.category or NO_CATEGORY, record.text, messages
    )
