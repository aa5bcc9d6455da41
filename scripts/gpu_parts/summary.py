"""Join the files of all parts into one result for `docs/results`."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_parts.run import HIDDEN, Values
from paceline.util.files import write_atomically

KIND, SCHEMA = "gpu day", 1


def write_summary(out: Path, parts: tuple[str, ...], path: Path) -> None:
    """Write the measurements of all parts, without logs.

    Args:
        out: Folder of the parts' files.
        parts: Names of the parts; those without a file are left out.
        path: File to write.
    """
    found = {}
    for part in parts:
        file = out / f"{part}.json"
        if file.is_file():
            document = json.loads(file.read_text("utf-8"))
            document["rows"] = {
                name: _without_logs(values) for name, values in document["rows"].items()
            }
            found[part] = document
    document = {"kind": KIND, "schema": SCHEMA, "parts": found}
    write_atomically(path, json.dumps(document, indent=1).encode() + b"\n")


def _without_logs(values: Values) -> Values:
    return {name: value for name, value in values.items() if name not in HIDDEN}
