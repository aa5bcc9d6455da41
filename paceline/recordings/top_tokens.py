"""The target's most likely tokens at every place of recorded answers: a file beside theirs,
`answers.jsonl.top`.

A line of JSON (kind, version, tokens a place, bytes of an id, the checksum of the answers' first
line), then a block for each answer: token ids [n, k], log-probabilities float16 [n, k], both
little-endian, and 8 bytes of SHA-256 over the digest before, the checksum of the answer's line, and
the block. A block is written before its answer, so that what an interruption left behind the last
whole answer is dropped with it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigError
from paceline.util.files import parse_json, write_atomically

_KIND, _VERSION = "paceline top tokens", 1
_BEGINNING = b'{"kind":"paceline top tokens"'
_DIGEST = 8  # bytes
_SMALL = 1 << 16  # ids below it have two bytes


class TopRows(NamedTuple):
    """The likeliest tokens at every place of an answer, the likeliest first: row i is of what the
    model said i-th.

    Attributes:
        token_ids: [n, k]. log_probs: float32 [n, k], at temperature 1, without penalties; three
            digits on disk.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class AnswerKey(NamedTuple):
    """An answer as the file beside it sees it: the checksum of its line, and its tokens."""

    check: str
    length: int


class TopFile:
    """The file while it is filled.

    Args:
        answers: file of the answers.
        top: tokens a place. vocab_size: of the ids.
        owner: checksum of the first line of the answers. there: answers that are kept; what is
            behind theirs is dropped.
    Raises:
        ConfigError: it is damaged, of other answers, or cannot be written.
    """

    def __init__(
        self, answers: Path, top: int, vocab_size: int, owner: str, there: Sequence[AnswerKey]
    ) -> None:
        self._path, self._layout = (
            top_path(answers),
            _FileSections(top, 2 if vocab_size <= _SMALL else 4, owner),
        )
        if not there:
            if self._path.exists() and not self._path.read_bytes()[: len(_BEGINNING)] == _BEGINNING:
                raise _damaged(self._path, "it is something else")
            write_atomically(self._path, self._layout.header)
        self._digest, end = b"", len(self._layout.header)
        for rows, digest in _blocks(answers, there, owner):
            self._digest, end = digest, end + len(self._layout.payload(rows)) + _DIGEST
        try:
            os.truncate(self._path, end)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def write(self, blocks: Iterable[tuple[TopRows, str]]) -> None:
        """Append the rows of answers, each with the checksum of its line; they are on the disk when
        this returns.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            with self._path.open("ab") as file:
                for rows, check in blocks:
                    payload = self._layout.payload(rows)
                    self._digest = _digest(self._digest, check, payload)
                    file.write(payload + self._digest)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_write(self._path, error) from error


def top_path(answers: str | Path) -> Path:
    """Return where the file of some answers is."""
    return Path(f"{answers}.top")


def read_rows(answers: str | Path, there: Iterable[AnswerKey], owner: str) -> Iterator[TopRows]:
    """Yield the rows of every answer.

    Raises:
        ConfigError: no such file, one of other answers, or a damaged block.
    """
    for rows, _ in _blocks(Path(answers), there, owner):
        yield rows


class _FileSections(NamedTuple):
    """How a file is laid out."""

    top: int
    id_bytes: int
    owner: str

    @property
    def header(self) -> bytes:
        """The first line."""
        values = {
            "kind": _KIND,
            "version": _VERSION,
            "top": self.top,
            "id_bytes": self.id_bytes,
            "answers": self.owner,
        }
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"

    def payload(self, rows: TopRows) -> bytes:
        """Return the bytes of a block without its digest."""
        return (
            rows.token_ids.astype(f"<u{self.id_bytes}").tobytes()
            + rows.log_probs.astype("<f2").tobytes()
        )

    def rows(self, payload: bytes, length: int) -> TopRows:
        """Return what such bytes say."""
        shape, ids = (length, self.top), length * self.top * self.id_bytes
        token_ids = (
            np.frombuffer(payload[:ids], f"<u{self.id_bytes}").reshape(shape).astype(np.int64)
        )
        return TopRows(
            token_ids, np.frombuffer(payload[ids:], "<f2").reshape(shape).astype(np.float32)
        )


def _blocks(
    answers: Path, there: Iterable[AnswerKey], owner: str
) -> Iterator[tuple[TopRows, bytes]]:
    """Yield the rows of each answer and the digest behind them."""
    path, before = top_path(answers), b""
    try:
        with path.open("rb") as file:
            layout = _opened(path, file, owner)
            for number, place in enumerate(there, 1):
                size = place.length * layout.top * (layout.id_bytes + 2)
                payload, found = file.read(size), file.read(_DIGEST)
                before = _digest(before, place.check, payload)
                if found != before:
                    raise _damaged(path, f"block {number} does not match its checksum")
                yield layout.rows(payload, place.length), before
    except OSError as error:
        raise _damaged(path, str(error)) from error


def _opened(path: Path, file: BufferedReader, owner: str) -> _FileSections:
    """Return the layout that the first line says, which must be of the answers with that first
    checksum.
    """
    line = file.readline(1 << 12)
    try:
        found = parse_json(line)
        layout = _FileSections(int(found["top"]), int(found["id_bytes"]), owner)
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, "its first line is another") from error
    if line != layout.header:
        raise _damaged(
            path, f"its first line is of version {found.get('version')!r}, or of other answers"
        )
    return layout


def _digest(before: bytes, check: str, payload: bytes) -> bytes:
    return hashlib.sha256(before + check.encode() + payload).digest()[:_DIGEST]


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"top tokens {str(path)!r}: got a file that cannot be used, as {what}; expected the one"
        " written with its answers. Delete both, and record them anew."
    )


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"top tokens {str(path)!r}: got {error}; expected a file that can be written. Make room or"
        " name another."
    )
