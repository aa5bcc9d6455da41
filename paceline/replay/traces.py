"""Recorded answers out of files of `paceline record`, or of other JSON lines, as token ids of any tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from paceline.common.answers import read_answers, read_settings, read_tops
from paceline.common.text_files import read_text
from paceline.datastore.inputs import check_recorded, parse_record
from paceline.engine.drafter import TopTokens
from paceline.errors import ConfigError


def read_traces(path: str | Path, tokenizer: Any = None, limit: int | None = None) -> list[tuple[list[int], list[int]]]:
    """Return (prompt ids, output ids) of each record of a file.

    Args:
        path: a file of `paceline record`, or JSON lines with `prompt` and `output`, each text or ids.
        tokenizer: of transformers, or one that is called like those; None where all are ids. For a file of `paceline record` its
            fingerprint will do.
        limit: read no more records.
    Raises:
        ConfigError: a file that cannot be read, a line without these fields, text without a tokenizer, a recording that is
            damaged, unfinished or of another tokenizer; the line is named.
    """
    if check_recorded(path, tokenizer):
        return [(answer.prompt_ids, answer.output_ids) for answer in read_answers(path, limit)]
    try:
        lines = read_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"traces {str(path)!r}: got {error}; expected a file of UTF-8 text. Check its name.") from error
    traces: list[tuple[list[int], list[int]]] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and (limit is None or len(traces) < limit):
            where = f"{path}, line {number}"
            record = _record(where, line)
            traces.append((_ids(where, record["prompt"], tokenizer), _ids(where, record["output"], tokenizer)))
    if not traces:
        raise ConfigError(f"traces {str(path)!r}: got no record; expected lines with prompt and output. Check its name.")
    return traces


def read_told(path: str | Path, limit: int | None = None) -> list[TopTokens] | None:
    """Return the target's most likely tokens at every place of each of `read_traces`; None where they were not recorded.

    Raises:
        ConfigError: the file beside the recording is missing, damaged or of other answers.
    """
    found = read_tops(path, limit)
    return None if found is None else [TopTokens(rows.token_ids, np.exp(rows.log_probs)) for rows in found]


def tokenizer_of(paths: Iterable[str | Path]) -> str | None:
    """Return the fingerprint of the tokenizer of files of `paceline record`; None where there is another file among them.

    Raises:
        ConfigError: two of them are of different tokenizers.
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
        raise ConfigError(f"{where}: got another record; expected one with prompt and output (text or ids). Rename its fields.")
    return record


def _ids(where: str, value: Any, tokenizer: Any) -> list[int]:
    if isinstance(value, list) and all(type(token) is int and token >= 0 for token in value):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"{where}: got {type(value).__name__}; expected prompt and output as text or a list of token ids.")
    if tokenizer is None:
        raise ConfigError(f"{where}: got text without a tokenizer; expected token ids. Give --tokenizer.")
    return list(tokenizer(value, add_special_tokens=False)["input_ids"])
