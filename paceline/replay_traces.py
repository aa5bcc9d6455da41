"""Recorded answers out of JSON lines, as token ids of any tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.datastore.inputs import parse_record
from paceline.errors import ConfigError


def read_traces(path: str | Path, tokenizer: Any = None, limit: int | None = None) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, output ids) of each record of a file.

    Args:
        path: JSON lines with `prompt` and `output`, each text or ids.
        tokenizer: of transformers, or one that is called like those; None where all are ids.
        limit: read no more records.
    Raises:
        ConfigError: a file that cannot be read, a line without these fields, or text without a tokenizer; the line is named.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"traces {str(path)!r} cannot be read: {error}.") from error
    traces: list[tuple[list[int], list[int]]] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and (limit is None or len(traces) < limit):
            where = f"{path}, line {number}"
            record = _record(where, line)
            traces.append((_ids(where, record["prompt"], tokenizer), _ids(where, record["output"], tokenizer)))
    if not traces:
        raise ConfigError(f"traces {str(path)!r} hold no record; lines with prompt and output are needed.")
    return traces


def _record(where: str, line: str) -> dict[str, Any]:
    record = parse_record(where, line)
    if not isinstance(record, dict) or not {"prompt", "output"} <= set(record):
        raise ConfigError(f"{where}: a record with prompt and output (text or ids) is allowed. Rename its fields.")
    return record


def _ids(where: str, value: Any, tokenizer: Any) -> list[int]:
    if isinstance(value, list) and all(type(token) is int and token >= 0 for token in value):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"{where}: prompt and output must be text or a list of token ids; {type(value).__name__} came.")
    if tokenizer is None:
        raise ConfigError(f"{where}: text came without a tokenizer; give --tokenizer.")
    return list(tokenizer(value, add_special_tokens=False)["input_ids"])
