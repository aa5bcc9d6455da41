"""Results on disk: JSON documents with a kind and a schema number, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError


def write_document(path: str | Path, kind: str, schema: int, content: dict[str, Any]) -> None:
    """Write `content`, headed by its kind and schema.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"schema": schema, "kind": kind, **content}, file, indent=1, allow_nan=False)
                file.write("\n")
            Path(temporary).chmod(0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


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
