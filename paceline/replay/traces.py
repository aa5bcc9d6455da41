"""Read recorded answers as token ids, from recordings or other JSON Lines files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.drafter import TopTokens
from paceline.datastore.inputs import check_recorded
from paceline.datastore.records import described, is_prompt, parse_record
from paceline.errors import ConfigError
from paceline.recorded_answers.reading import read_answers, read_settings, read_tops
from paceline.util.text_files import read_text


def read_traces(
    path: str | Path, tokenizer: Any = None, limit: int | None = None
) -> list[tuple[list[int], list[int]]]:
    """Read pairs of prompt ids and output ids from a file of answers.

    Args:
        path: File written by `paceline record`, or JSON Lines with the fields `prompt` and
            `output`. Each field is text or a list of token ids.
        tokenizer: transformers tokenizer, or a callable with the same interface, to encode text.
            Not required for token ids. For a file written by `paceline record`, the argument may be
            a tokenizer's fingerprint, which must match the fingerprint in the file.
        limit: Maximum number of answers to read. Default: no limit.
    Raises:
        ConfigError: The file cannot be read, a line does not have these fields, or a text needs a
            tokenizer. Also raised if a file from `paceline record` is damaged or unfinished, or was
            recorded with a different tokenizer.
    """
    if check_recorded(path, tokenizer):
        return [(answer.prompt_ids, answer.output_ids) for answer in read_answers(path, limit)]
    try:
        lines = read_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"the traces {str(path)!r} cannot be read: {reason}. Check the path."
        ) from error
    traces: list[tuple[list[int], list[int]]] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and (limit is None or len(traces) < limit):
            where = f"{path}:{number}"
            record = _record(where, line)
            traces.append(
                (_ids(where, record["prompt"], tokenizer), _ids(where, record["output"], tokenizer))
            )
    if not traces:
        raise ConfigError(
            f"traces {str(path)!r}: got no records; expected lines with prompt and output. Check"
            " the file's name."
        )
    return traces


def read_top_tokens(path: str | Path, limit: int | None = None) -> list[TopTokens] | None:
    """Read the target's top tokens at every position of each recorded answer.

    Args:
        path: File written by `paceline record`.
        limit: Maximum number of answers to read. Default: no limit.
    Returns:
        The top tokens of each answer, or None if `paceline record` did not record them.
    Raises:
        ConfigError: The file with the top tokens is missing, damaged, or belongs to other answers.
    """
    tops = read_tops(path, limit)
    if tops is None:
        return None
    return [TopTokens(rows.token_ids, np.exp(rows.log_probs)) for rows in tops]


def tokenizer_of(paths: Iterable[str | Path]) -> str | None:
    """Read the tokenizer fingerprint from files written by `paceline record`.

    Returns:
        The fingerprint, or None if `paceline record` did not write all of the files.
    Raises:
        ConfigError: Two files have different tokenizers.
    """
    known = None
    for path in paths:
        settings = read_settings(path)
        if settings is None:
            return None
        check_recorded(path, known)
        known = settings["tokenizer"]
    return known


def _record(where: str, line: str) -> dict[str, Any]:
    record = parse_record(where, line)
    if not isinstance(record, dict) or not {"prompt", "output"} <= set(record):
        fix = "Record" if is_prompt(record) else "Rename its fields, or record"
        raise ConfigError(
            f"{where}: got a record of {described(record)}; expected prompt and output, each as"
            f" text or token ids. {fix} answers with `paceline record`."
        )
    return record


def _ids(where: str, value: Any, tokenizer: Any) -> list[int]:
    if isinstance(value, list) and all(type(token) is int and token >= 0 for token in value):
        return value
    if not isinstance(value, str):
        raise ConfigError(
            f"{where}: got {type(value).__name__}; expected prompt and output as text or a list of"
            " token ids."
        )
    if tokenizer is None:
        raise ConfigError(f"{where}: got text, but no tokenizer to encode it. Pass --tokenizer.")
    return list(tokenizer(value, add_special_tokens=False)["input_ids"])
