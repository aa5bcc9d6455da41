"""Files that appear whole or not at all, and the checksum of what JSON ones say."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError


def write_atomically(path: str | Path, content: bytes) -> None:
    """Put `content` in the place of what is at `path`; whoever reads there, or a crash, finds the old file or the new one.

    Raises:
        ConfigError: it cannot be written; what was there stays.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


def digest_of(content: dict[str, Any]) -> str:
    """SHA-256 over everything in a JSON document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
