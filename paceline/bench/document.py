"""Results on disk: JSON documents with a kind and a schema number, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.files import write_atomically


def write_document(path: str | Path, kind: str, schema: int, content: dict[str, Any]) -> None:
    """Write `content`, headed by its kind and schema.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json.dumps({"schema": schema, "kind": kind, **content}, indent=1, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def read_document(path: str | Path, kind: str, schema: int) -> dict[str, Any]:
    """What `write_document` wrote.

    Raises:
        ConfigError: not such a file, or one of another kind or schema.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read a result from {str(path)!r}: {error}") from error
    found = (document.get("kind"), document.get("schema")) if isinstance(document, dict) else (None, None)
    if found != (kind, schema):
        raise ConfigError(
            f"{str(path)!r} is of kind {found[0]!r}, schema {found[1]!r}; this version reads {kind!r}, {schema}. Run it again."
        )
    return dict(document)
