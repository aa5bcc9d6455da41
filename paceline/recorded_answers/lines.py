"""Add checksums to the lines of a file of recorded answers, and verify them.

A file consists of JSON Lines: the settings, followed by one answer per line. The checksum of a line
covers the line and the previous line's checksum, so a reader detects changed, lost, duplicated and
moved lines. The first line contains the total number of answers, so a reader also recognises an
unfinished file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.recorded_answers.settings import CHECK_DIGITS, MAX_FIRST_LINE
from paceline.util.files import digest_of, parse_json

KIND, VERSION = "paceline answers", 1
_CHECK = "check"  # key of the checksum in a line


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A model's answer to one prompt.

    Attributes:
        id: Name of the prompt.
        category: Category of the prompt.
        prompt_ids: Token ids of the prompt, including the chat template.
        output_ids: Token ids of the answer, including an end-of-sequence token.
        finish_reason: Why the answer ended: "stop" or "length".
    """

    id: str
    category: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str


def first_line(path: Path) -> bytes:
    """Return the first line of a file, or b"" if the file does not exist."""
    try:
        with path.open("rb") as file:
            return file.readline(MAX_FIRST_LINE)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(
            f"answers {str(path)!r}: got {error}; expected a file that can be read. Name another"
            " file."
        ) from error


def checked_lines(path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Verify the lines of a file of recorded answers, and yield each complete line.

    Yields:
        JSON values of the line, the line's checksum, and the byte offset of the line's end in the
        file.
    Raises:
        ConfigError: A line does not match its checksum, or the file has more answers than its first
            line states.
    """
    check, end, count = "", 0, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # cut off by an interruption
                    return
                record, check = open_line(path, number, line, check)
                count = record["count"] if number == 1 else count
                if number - 1 > count:
                    raise _damaged(
                        path,
                        number,
                        f"there are more than the {count} answers that the first line specifies",
                    )
                end += len(line)
                yield record, check, end
    except OSError as error:
        raise ConfigError(
            f"answers {str(path)!r}: got {error}; expected a file that can be read. Check its"
            " permissions."
        ) from error


def seal_line(record: dict[str, Any], previous_check: str) -> tuple[bytes, str]:
    """Encode a record as a line with a checksum; return the line and the checksum.

    Args:
        record: JSON values of the line.
        previous_check: Checksum of the previous line. Empty for the first line.
    """
    check = digest_of({"record": record, "before": previous_check})[:CHECK_DIGITS]
    return json.dumps({**record, _CHECK: check}, separators=(",", ":")).encode() + b"\n", check


def open_line(
    path: str | Path, number: int, line: bytes, previous_check: str
) -> tuple[dict[str, Any], str]:
    """Decode a line, verify its checksum, and return the record and the checksum.

    Args:
        path: File that contains the line, for error messages.
        number: Line number, starting from 1, for error messages.
        line: Line to decode.
        previous_check: Checksum of the previous line. Empty for the first line.
    Raises:
        ConfigError: The line does not match its checksum.
    """
    try:
        record = parse_json(line)
        check = record.pop(_CHECK)
        expected = digest_of({"record": record, "before": previous_check})[:CHECK_DIGITS]
        matches = check == expected
    except (ValueError, LookupError, AttributeError, TypeError):
        matches = False
    if not matches:
        raise _damaged(path, number, "its checksum does not match")
    return record, check


def other_file(path: str | Path) -> ConfigError:
    """Return the error to raise if `path` is not a file of recorded answers."""
    content = "something else" if Path(path).exists() else "no file"
    return ConfigError(
        f"answers {str(path)!r}: got {content}; expected a file from `paceline record`. Name"
        " another file."
    )


def write_error(content: str, path: Path, error: OSError) -> ConfigError:
    """Return the error to raise if a file cannot be written.

    Args:
        content: Name of the content in the error message, such as "answers".
        path: Path of the file.
        error: Error from the operating system.
    """
    return ConfigError(
        f"{content} {str(path)!r}: got {error}; expected a file that can be written. Free some"
        " space or name another file."
    )


def _damaged(path: str | Path, number: int, reason: str) -> ConfigError:
    return ConfigError(
        f"{path}:{number}: the line is damaged: {reason}. Delete it and all lines after it, then"
        " run the same command (`paceline record`) again to continue from there."
    )
