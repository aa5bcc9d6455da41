"""Recorded answers on disk: JSON lines that say how they were made, then one answer a line, each
line with a checksum.

The first line holds the settings, the number of answers that will come, and a digest of the
prompts. Checksums are chained: that of a line covers the line and the checksum before it, so that a
line that was changed, lost, doubled or moved is found, and the file needs no end mark: it is
finished when the promised number of answers is there. Lines are appended in batches. What an
interruption left of a batch is dropped by the next run, which therefore answers in the batches that
the first one would have answered in, and leaves the same bytes.

With the setting `top`, the target's most likely tokens at every place stand in a file beside it
(`paceline.recordings.top_tokens`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.errors import ConfigError
from paceline.recordings.top_tokens import AnswerKey, TopFile, TopRows, read_rows
from paceline.util.files import digest_of, parse_json, write_atomically

_KIND, _VERSION = "paceline answers", 1
_CHECK = "check"
_CHECK_DIGITS = 16
_LONGEST_FIRST_LINE = 1 << 20  # bytes; a longer one is that of another file
# a name that may change from run to run: which model it is, its fingerprint says
_DESCRIPTIVE = ("model",)


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """What a model said to one prompt.

    Attributes:
        id, category: of the prompt.
        prompt_ids: token ids of the prompt, the chat template included.
        output_ids: token ids of the answer, an end-of-sequence token included.
        finish_reason: "stop" or "length".
    """

    id: str
    category: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str


class AnswerFile:
    """A file of recorded answers while it is filled; see `writing`.

    Attributes:
        done: answers that are there.
        count: answers that there will be.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], count: int, batch: int) -> None:
        self.path, self.count = path, count
        first = {"kind": _KIND, "version": _VERSION, "count": count, "batch": batch, **settings}
        line, _ = _sealed(first, "")
        found = _beginning(path)
        if not found.endswith(b"\n") and line.startswith(
            found
        ):  # no file, or one that was cut within its first line
            write_atomically(path, line)
        _compare(path, read_settings(path), first)
        ends = [
            (end, AnswerKey(check, len(record.get("output_ids", ()))))
            for record, check, end in _lines(path)
        ]
        there = len(ends) - 1
        self.done = there if there == count else there // batch * batch
        end, (self._check, _) = ends[self.done]
        (_, (owner, _)), *kept = ends[: self.done + 1]
        top = settings.get("top")
        self._top = (
            TopFile(path, top, settings["vocab_size"], owner, [place for _, place in kept])
            if top
            else None
        )
        try:
            if path.stat().st_size != end:
                os.truncate(path, end)
        except OSError as error:
            raise _cannot_write(path, error) from error

    def write(self, answers: Sequence[RecordedAnswer], tops: Sequence[TopRows] = ()) -> None:
        """Append the answers of a batch; they are on the disk when this returns.

        Args:
            tops: of each answer, with the setting `top`.
        Raises:
            ConfigError: the file cannot be written. What is whole of it is used by the next run.
        """
        lines, checks = [], []
        for answer in answers:
            line, self._check = _sealed(asdict(answer), self._check)
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
            raise _cannot_write(self.path, error) from error
        self.done += len(answers)


@contextmanager
def writing(
    path: str | Path, settings: Mapping[str, Any], count: int, batch: int
) -> Iterator[AnswerFile]:
    """Begin a file of recorded answers, or continue one; nobody else writes it meanwhile
    (PATH.lock, which stays, is locked).

    Args:
        settings: what makes these answers differ from others; of JSON's types. With "top" and
            "vocab_size" so many most likely tokens a place are written beside it.
        count: answers that there will be.
        batch: answers written together.
    Raises:
        ConfigError: it is another file, it was begun with other settings, it is damaged or being
            written, or cannot be written.
    """
    path = Path(path)
    lock = FileLock(f"{path}.lock", mode=0o644, blocking=False, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise ConfigError(
            f"answers {str(path)!r}: got a second writer; expected one. Wait for it, or end it."
        ) from error
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield AnswerFile(path, settings, count, batch)
    finally:
        lock.release()


def read_settings(path: str | Path) -> dict[str, Any] | None:
    """Return what the first line of a file of recorded answers says; None if it is another file, or
    none.

    Raises:
        ConfigError: the line is damaged, or of another version.
    """
    try:
        line = _beginning(Path(path))
        found = parse_json(line)
    except (ConfigError, ValueError):
        return None
    if not line.endswith(b"\n") or not isinstance(found, dict) or found.get("kind") != _KIND:
        return None
    if found.get("version") != _VERSION:
        raise ConfigError(
            f"answers {str(path)!r}: got version {found.get('version')!r}; expected {_VERSION}."
            " Record them anew, or use the release that recorded them."
        )
    return _opened(path, 1, line, "")[0]


def read_answers(path: str | Path, limit: int | None = None) -> Iterator[RecordedAnswer]:
    """Yield recorded answers; every line is compared with its checksum.

    Args:
        limit: at most so many. An unfinished file that has so many will do.
    Raises:
        ConfigError: another file, one that is not finished, or a damaged line, which is named.
    """
    settings = read_settings(path)
    if settings is None:
        raise _another(path)
    there = 0
    for record, _, _ in islice(_lines(Path(path)), 1, None if limit is None else limit + 1):
        there += 1
        yield RecordedAnswer(**record)
    if there < min(settings["count"], settings["count"] if limit is None else limit):
        raise ConfigError(
            f"answers {str(path)!r}: got {there} of its {settings['count']} answers; expected all."
            " Give the same command (`paceline record`) again: it continues where it was."
        )


def read_tops(path: str | Path, limit: int | None = None) -> Iterator[TopRows] | None:
    """Return the most likely tokens of each of `read_answers`; None where they were not recorded.

    Raises:
        ConfigError: as `read_answers`; the file beside it is missing, damaged or of other answers.
    """
    settings = read_settings(path)
    if settings is None or not settings.get("top"):
        return None
    (_, owner, _), *answers = islice(_lines(Path(path)), None if limit is None else limit + 1)
    return read_rows(
        path, [AnswerKey(check, len(record["output_ids"])) for record, check, _ in answers], owner
    )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name; those in groups, such as "sampling", stand beside the others."""
    values: dict[str, Any] = {}
    for name, value in settings.items():
        values |= value if isinstance(value, dict) else {name: value}
    return values


def _compare(path: Path, found: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    """Refuse a file that was begun otherwise."""
    if found is None:
        raise _another(path)
    there, asked = _flat(found), _flat(json.loads(json.dumps(wanted)))
    for name in [*asked, *(there.keys() - asked.keys())]:
        if name not in _DESCRIPTIVE and there.get(name) != asked.get(name):
            raise ConfigError(
                f"answers {str(path)!r}: {name}: got {asked.get(name)!r}; expected"
                f" {there.get(name)!r}, as the file was begun. Continue with the same settings, or"
                " name another file."
            )


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Yield what each whole line says, its checksum and the byte behind it; the settings first."""
    check, end, count = "", 0, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # an interruption cut it
                    return
                record, check = _opened(path, number, line, check)
                count = record["count"] if number == 1 else count
                if number - 1 > count:
                    raise _damaged(
                        path,
                        number,
                        f"there are more than the {count} answers that the first line promises",
                    )
                end += len(line)
                yield record, check, end
    except OSError as error:
        raise ConfigError(
            f"answers {str(path)!r}: got {error}; expected a file that can be read. Check its"
            " rights."
        ) from error


def _beginning(path: Path) -> bytes:
    """Return the first line; b"" if there is no file."""
    try:
        with path.open("rb") as file:
            return file.readline(_LONGEST_FIRST_LINE)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(
            f"answers {str(path)!r}: got {error}; expected a file that can be read. Name another"
            " one."
        ) from error


def _sealed(record: dict[str, Any], before: str) -> tuple[bytes, str]:
    """Return the line of a record, and its checksum, given that of the line before."""
    check = digest_of({"record": record, "before": before})[:_CHECK_DIGITS]
    return json.dumps({**record, _CHECK: check}, separators=(",", ":")).encode() + b"\n", check


def _opened(path: str | Path, number: int, line: bytes, before: str) -> tuple[dict[str, Any], str]:
    """Return what a line says, and its checksum.

    Raises:
        ConfigError: it does not match its checksum.
    """
    try:
        record = parse_json(line)
        check = record.pop(_CHECK)
        sound = check == digest_of({"record": record, "before": before})[:_CHECK_DIGITS]
    except (ValueError, LookupError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise _damaged(path, number, "its checksum does not match")
    return record, check


def _damaged(path: str | Path, number: int, what: str) -> ConfigError:
    return ConfigError(
        f"answers {str(path)!r}, line {number}: got a damaged line, as {what}; expected it as it"
        " was written. Delete it and all lines behind it, and give the same command (`paceline"
        " record`) again: it continues from there."
    )


def _another(path: str | Path) -> ConfigError:
    found = "something else" if Path(path).exists() else "no such file"
    return ConfigError(
        f"answers {str(path)!r}: got {found}; expected one of `paceline record`. Name another one."
    )


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"answers {str(path)!r}: got {error}; expected a file that can be written. Make room or"
        " name another."
    )
