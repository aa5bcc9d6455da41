"""Run the measurements of a part, print a row for each and keep them in a JSON file."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from gpu_parts.settings import Sizes
from paceline.util.files import write_atomically

Values = dict[str, Any]
_MAX_TEXT = 200
HIDDEN = ("traceback", "log", "answers")  # kept in the file, not printed


class DeviceLost(Exception):
    """Every call of the device fails after an error, so a new process must continue."""


@dataclass(frozen=True, slots=True)
class Run:
    """Options of a run.

    Attributes:
        device: Device that is measured.
        dtype: Data type of the models, outside the exact part.
        sizes: Sizes of the measurements.
        out: Folder of the JSON files.
        deadline: Time of `time.monotonic` after which no measurement starts.
        keep_errors: Whether measurements that failed count as finished.
        fixed_shapes: As in `LLM`, for targets.
        model: Directory, hub id or GGUF file of the target; "demo" enlarges the embedded one.
        draft_model: Draft model of that target; None for none.
        scale: Width and layers of the enlarged target; None for the model as it is.
    """

    device: torch.device
    dtype: torch.dtype
    sizes: Sizes
    out: Path
    deadline: float
    keep_errors: bool = False
    fixed_shapes: bool | Literal["auto"] = "auto"
    model: str = "demo"
    draft_model: str | None = "demo"
    scale: str | None = None

    @property
    def on_cuda(self) -> bool:
        """Return whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def expired(self) -> bool:
        """Return whether the time is up, so that no further measurement may start."""
        return time.monotonic() >= self.deadline


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement: its name, unique in its part, and the function that returns its values."""

    name: str
    measure: Callable[[], Values]


def run_part(part: str, cases: Callable[[Run], Iterable[Case]], run: Run) -> bool:
    """Run the measurements of a part that have no values yet.

    Args:
        part: Name of the part and of its file.
        cases: Function that returns the measurements.
        run: Options.
    Returns:
        Whether the part is finished.
    Raises:
        DeviceLost: The device does not work any more. The file says which measurement failed.
    """
    path = run.out / f"{part}.json"
    document = _start(path, part, run)
    if document["finished"]:
        say(f"==== {part}: finished before, in {path}")
        return True
    say(f"==== {part}: {(cases.__doc__ or '').strip().partition(chr(10))[0]}")
    rows: dict[str, Values] = document["rows"]
    begin = time.monotonic()
    for case in cases(run):
        if case.name in rows:
            continue
        if run.expired:
            say(f"---- {part}: out of time before {case.name}")
            return False
        rows[case.name] = values = _measured(case)
        say(row_text(case.name, values))
        document["seconds"] = round(document["seconds"] + time.monotonic() - begin, 1)
        begin = time.monotonic()
        _save(path, document)
        if "error" in values:
            check_device(run)
    document["finished"] = True
    _save(path, document)
    say(f"---- {part}: {document['seconds']:.0f} s")
    return True


def recorded_rows(run: Run, part: str) -> dict[str, Values]:
    """Return the measurements of a part so far, by name."""
    path = run.out / f"{part}.json"
    if not path.is_file():
        return {}
    rows: dict[str, Values] = json.loads(path.read_text("utf-8"))["rows"]
    return rows


def say(text: str) -> None:
    """Print a line immediately, because a run can be stopped at any time."""
    print(text, flush=True)


def row_text(name: str, values: Values) -> str:
    """Return a measurement as one line."""
    shown = ", ".join(f"{key} {_text(value)}" for key, value in values.items() if key not in HIDDEN)
    return f"{name}: {shown}"


def check_device(run: Run) -> None:
    """Check that the device still works.

    Raises:
        DeviceLost: The device fails.
    """
    if not run.on_cuda:
        return
    try:
        torch.cuda.synchronize(run.device)
    except RuntimeError as error:
        raise DeviceLost(str(error)) from error


def _measured(case: Case) -> Values:
    try:
        return case.measure()
    except Exception as error:
        lines = traceback.format_exc()
        print(lines, file=sys.stderr, flush=True)
        return {"error": f"{type(error).__name__}: {str(error)[:200]}", "traceback": lines}


def _start(path: Path, part: str, run: Run) -> Values:
    document: Values = {"part": part, "finished": False, "seconds": 0.0, "rows": {}}
    if not path.is_file():
        return document
    document = json.loads(path.read_text("utf-8"))
    if not run.keep_errors:
        rows = document["rows"]
        kept = {name: values for name, values in rows.items() if "error" not in values}
        if len(kept) < len(rows):
            document |= {"finished": False, "rows": kept}
    return document


def _save(path: Path, document: Values) -> None:
    write_atomically(path, json.dumps(document, indent=1).encode() + b"\n")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, dict):
        return " / ".join(_text(one) for one in value.values())
    if isinstance(value, list):
        return f"{len(value)} entries" if value and isinstance(value[0], dict) else str(value)
    return "-" if value is None else str(value)[:_MAX_TEXT]
