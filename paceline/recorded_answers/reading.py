"""Read files of recorded answers, and verify the checksum of every line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.recorded_answers.lines import (
    KIND,
    VERSION,
    RecordedAnswer,
    checked_lines,
    first_line,
    open_line,
    other_file,
)
from paceline.recorded_answers.top_tokens import AnswerKey, TopRows, read_rows
from paceline.util.files import parse_json


def read_settings(path: str | Path) -> dict[str, Any] | None:
    """Read the settings in a file of recorded answers.

    Returns:
        The settings, or None if the file does not exist or contains something else.
    Raises:
        ConfigError: The first line is damaged, or states a different format version.
    """
    try:
        line = first_line(Path(path))
        record = parse_json(line)
    except (ConfigError, ValueError):
        return None
    if not line.endswith(b"\n") or not isinstance(record, dict) or record.get("kind") != KIND:
        return None
    if record.get("version") != VERSION:
        raise ConfigError(
            f"answers {str(path)!r}: got version {record.get('version')!r}; expected {VERSION}."
            " Record the answers again, or use the release that recorded them."
        )
    return open_line(path, 1, line, "")[0]


def read_answers(path: str | Path, limit: int | None = None) -> Iterator[RecordedAnswer]:
    """Yield the recorded answers in a file.

    Args:
        path: File to read.
        limit: Maximum number of answers to read. An unfinished file is valid if it contains at
            least this number of answers.
    Raises:
        ConfigError: The file does not contain recorded answers, is unfinished, or has a damaged
            line. The error message contains the number of the damaged line.
    """
    settings = read_settings(path)
    if settings is None:
        raise other_file(path)
    num_read = 0
    for record, _, _ in islice(checked_lines(Path(path)), 1, None if limit is None else limit + 1):
        num_read += 1
        yield RecordedAnswer(**record)
    if num_read < min(settings["count"], settings["count"] if limit is None else limit):
        raise ConfigError(
            f"answers {str(path)!r}: got {num_read} of its {settings['count']} answers; expected"
            " all. Run the same command (`paceline record`) again: it continues where it stopped."
        )


def read_tops(path: str | Path, limit: int | None = None) -> Iterator[TopRows] | None:
    """Read the target's top-k tokens at every position of each recorded answer.

    Args:
        path: File of recorded answers.
        limit: Maximum number of answers for which to read the tokens.
    Returns:
        The top-k tokens of each answer, or None if they were not recorded.
    Raises:
        ConfigError: The file of recorded answers is damaged. Also raised if the file with the top-k
            tokens is missing or damaged, or belongs to other answers.
    """
    settings = read_settings(path)
    if settings is None or not settings.get("top"):
        return None
    (_, owner, _), *answers = islice(
        checked_lines(Path(path)), None if limit is None else limit + 1
    )
    return read_rows(
        path, [AnswerKey(check, len(record["output_ids"])) for record, check, _ in answers], owner
    )
