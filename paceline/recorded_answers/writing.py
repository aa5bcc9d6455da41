"""Write recorded answers to a file so that an interrupted recording can continue.

The first line contains the settings, the total number of answers, and a digest of the prompts. The
answers follow in batches. After an interruption, the next run removes the unfinished batch, and
continues with the same batches as an uninterrupted run. The finished file therefore has the same
bytes as the file of an uninterrupted run.

With the setting `top`, a second file stores the target's top-k tokens at each position
(`paceline.recorded_answers.top_tokens`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.errors import ConfigError
from paceline.recorded_answers.lines import (
    KIND,
    VERSION,
    RecordedAnswer,
    checked_lines,
    first_line,
    other_file,
    seal_line,
    write_error,
)
from paceline.recorded_answers.reading import read_settings
from paceline.recorded_answers.top_tokens import AnswerKey, TopFile, TopRows
from paceline.util.files import write_atomically

# Settings that may differ when a run continues a file. The fingerprint, not the name, identifies
# the model.
_DESCRIPTIVE = ("model",)
# For settings that are not options: description of the difference in error messages.
_OTHERS = {
    "count": "to other prompts",
    "prompts": "to other prompts",
    "model_fingerprint": "from another model",
}


class AnswerFile:
    """Appends answers to a file of recorded answers; use `writing` to open one.

    Attributes:
        done: Number of answers in the file.
        count: Number of answers in the finished file.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], count: int, batch: int) -> None:
        self.path, self.count = path, count
        first = {"kind": KIND, "version": VERSION, "count": count, "batch": batch, **settings}
        line, _ = seal_line(first, "")
        existing = first_line(path)
        # The file does not exist, or an interruption cut it off within its first line.
        if not existing.endswith(b"\n") and line.startswith(existing):
            write_atomically(path, line)
        _require_same_settings(path, read_settings(path), first)
        ends = [
            (end, AnswerKey(check, len(record.get("output_ids", ()))))
            for record, check, end in checked_lines(path)
        ]
        num_complete = len(ends) - 1
        self.done = num_complete if num_complete == count else num_complete // batch * batch
        end, (self._check, _) = ends[self.done]
        (_, (owner, _)), *answers = ends[: self.done + 1]
        top = settings.get("top")
        self._top = (
            TopFile(path, top, settings["vocab_size"], owner, [key for _, key in answers])
            if top
            else None
        )
        try:
            if path.stat().st_size != end:
                os.truncate(path, end)
        except OSError as error:
            raise write_error("answers", path, error) from error

    def write(self, answers: Sequence[RecordedAnswer], tops: Sequence[TopRows] = ()) -> None:
        """Append the answers of a batch, and return once they are on disk.

        Args:
            answers: Answers of the batch.
            tops: Top-k tokens of each answer. Required if the settings contain "top".
        Raises:
            ConfigError: The file cannot be written. The next run continues after the complete
                batches in the file.
        """
        lines, checks = [], []
        for answer in answers:
            line, self._check = seal_line(asdict(answer), self._check)
            lines.append(line)
            checks.append(self._check)
        if self._top is not None:
            self._top.write(zip(tops, checks, strict=True))
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise write_error("answers", self.path, error) from error
        self.done += len(answers)


@contextmanager
def writing(
    path: str | Path, settings: Mapping[str, Any], count: int, batch: int
) -> Iterator[AnswerFile]:
    """Start or continue a file of recorded answers, and lock it against other writers.

    The lock file, PATH.lock, remains after the `with` block.

    Args:
        path: File for the answers.
        settings: JSON values that an existing file must have in common with this run, such as the
            model and the sampling parameters. If the settings contain "top" and "vocab_size", a
            second file stores the target's "top" most likely tokens at each position.
        count: Number of answers in the finished file.
        batch: Number of answers per batch. The answers of a batch are written together.
    Raises:
        ConfigError: The existing file is damaged, has different settings, or does not contain
            recorded answers. Also raised if the file cannot be written, or if another process is
            writing to it.
    """
    path = Path(path)
    lock = FileLock(f"{path}.lock", mode=0o644, blocking=False, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise ConfigError(
            f"answers {str(path)!r}: another process is writing this file. Wait for that process,"
            " or end it."
        ) from error
    except OSError as error:
        raise write_error("answers", path, error) from error
    try:
        yield AnswerFile(path, settings, count, batch)
    finally:
        lock.release()


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten groups of settings, such as "sampling", into single settings."""
    values: dict[str, Any] = {}
    for name, value in settings.items():
        values |= value if isinstance(value, dict) else {name: value}
    return values


def _require_same_settings(
    path: Path, recorded: dict[str, Any] | None, wanted: dict[str, Any]
) -> None:
    if recorded is None:
        raise other_file(path)
    old, new = _flat(recorded), _flat(json.loads(json.dumps(wanted)))
    for name in [*new, *(old.keys() - new.keys())]:
        if name not in _DESCRIPTIVE and old.get(name) != new.get(name):
            if name in _OTHERS:
                counts = f" ({old.get(name)}, not {new.get(name)})" if name == "count" else ""
                raise ConfigError(
                    f"{path} contains answers {_OTHERS[name]}{counts}. Name another file with"
                    " --out."
                )
            raise ConfigError(
                f"answers {str(path)!r}: \0{name}\0: got {new.get(name)!r}; expected"
                f" {old.get(name)!r}, as at the start of the file. Continue with the same"
                " settings, or name another file."
            )
