"""Store the target's top-k tokens at each position of recorded answers.

The file is named after the answers file, for example `answers.jsonl.top`. The first line is JSON:
kind, version, tokens per position, bytes per id, and the checksum of the first line of the answers
file. One block per answer follows. A block for an answer of n tokens consists of:

- Token ids, [n, k], little-endian.
- Log-probabilities, float16 [n, k], little-endian.
- The first 8 bytes of a SHA-256 digest. The digest covers the previous block's digest, the checksum
  of the answer's line in the answers file, and this block's ids and log-probabilities.

Each block is written before its answer. If the recording was interrupted, blocks after the last
complete answer are dropped.
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
from paceline.recorded_answers.lines import write_error
from paceline.recorded_answers.settings import DIGEST_BYTES, MAX_FIRST_TOP_LINE, TWO_BYTE_IDS
from paceline.util.files import parse_json, write_atomically

_KIND, _VERSION = "paceline top tokens", 1
_BEGINNING = b'{"kind":"paceline top tokens"'


class TopRows(NamedTuple):
    """The top-k tokens at each position of an answer, most likely first.

    Row i holds the predictions for the i-th token of the answer.

    Attributes:
        token_ids: Token ids, [n, k].
        log_probs: Log-probabilities, float32 [n, k], at temperature 1 and without penalties.
            Log-probabilities read from a file have a precision of three digits.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class AnswerKey(NamedTuple):
    """The checksum of an answer's line in its file, and the answer's token count."""

    check: str
    length: int


class TopFile:
    """A file of top-k tokens that is being written.

    Args:
        answers: Answers file, whose name determines the name of the top-k tokens file.
        top: Number of top-k tokens per position.
        vocab_size: Size of the vocabulary.
        owner: Checksum of the first line of the answers file.
        keys: Answers whose top-k tokens the file must contain. Any blocks after these answers are
            dropped.
    Raises:
        ConfigError: The file is damaged, belongs to other answers, or cannot be written.
    """

    def __init__(
        self, answers: Path, top: int, vocab_size: int, owner: str, keys: Sequence[AnswerKey]
    ) -> None:
        self._path = top_path(answers)
        self._layout = _Layout(top, 2 if vocab_size <= TWO_BYTE_IDS else 4, owner)
        if not keys:
            if self._path.exists() and not self._path.read_bytes()[: len(_BEGINNING)] == _BEGINNING:
                raise _damaged(self._path, "it is something else")
            write_atomically(self._path, self._layout.header)
        self._digest, end = b"", len(self._layout.header)
        for rows, digest in _blocks(answers, keys, owner):
            self._digest, end = digest, end + len(self._layout.payload(rows)) + DIGEST_BYTES
        try:
            os.truncate(self._path, end)
        except OSError as error:
            raise write_error("top tokens", self._path, error) from error

    def write(self, blocks: Iterable[tuple[TopRows, str]]) -> None:
        """Append the top-k tokens of answers, and return once they are on disk.

        Args:
            blocks: The top-k tokens of each answer, and the checksum of the answer's line in the
                answers file.
        Raises:
            ConfigError: The file cannot be written.
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
            raise write_error("top tokens", self._path, error) from error


def top_path(answers: str | Path) -> Path:
    """Return the path of the top-k tokens file for an answers file."""
    return Path(f"{answers}.top")


def read_rows(answers: str | Path, keys: Iterable[AnswerKey], owner: str) -> Iterator[TopRows]:
    """Yield the top-k tokens of every answer.

    Args:
        answers: Answers file.
        keys: All answers, in the order of the answers file.
        owner: Checksum of the first line of the answers file.
    Raises:
        ConfigError: The file of top-k tokens is missing, belongs to other answers, or has a damaged
            block.
    """
    for rows, _ in _blocks(Path(answers), keys, owner):
        yield rows


class _Layout(NamedTuple):
    """The layout of a file of top-k tokens."""

    top: int
    id_bytes: int
    owner: str

    @property
    def header(self) -> bytes:
        values = {
            "kind": _KIND,
            "version": _VERSION,
            "top": self.top,
            "id_bytes": self.id_bytes,
            "answers": self.owner,
        }
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"

    def payload(self, rows: TopRows) -> bytes:
        """Return the bytes that store an answer's top-k tokens, without the digest."""
        return (
            rows.token_ids.astype(f"<u{self.id_bytes}").tobytes()
            + rows.log_probs.astype("<f2").tobytes()
        )

    def rows(self, payload: bytes, length: int) -> TopRows:
        """Return an answer's top-k tokens, given the bytes from `payload`."""
        shape, ids = (length, self.top), length * self.top * self.id_bytes
        token_ids = (
            np.frombuffer(payload[:ids], f"<u{self.id_bytes}").reshape(shape).astype(np.int64)
        )
        return TopRows(
            token_ids, np.frombuffer(payload[ids:], "<f2").reshape(shape).astype(np.float32)
        )


def _blocks(
    answers: Path, keys: Iterable[AnswerKey], owner: str
) -> Iterator[tuple[TopRows, bytes]]:
    """Yield each answer's top-k tokens, and the checksum at the end of its block.

    The file stores one block per answer.
    """
    path, previous = top_path(answers), b""
    try:
        with path.open("rb") as file:
            layout = _read_layout(path, file, owner)
            for number, key in enumerate(keys, 1):
                size = key.length * layout.top * (layout.id_bytes + 2)
                payload, digest = file.read(size), file.read(DIGEST_BYTES)
                previous = _digest(previous, key.check, payload)
                if digest != previous:
                    raise _damaged(path, f"block {number} does not match its checksum")
                yield layout.rows(payload, key.length), previous
    except OSError as error:
        raise _damaged(path, str(error)) from error


def _read_layout(path: Path, file: BufferedReader, owner: str) -> _Layout:
    """Read the first line of a file of top-k tokens, and return the file's layout.

    The line must contain `owner`, the checksum of the first line of the answers file.
    """
    line = file.readline(MAX_FIRST_TOP_LINE)
    try:
        values = parse_json(line)
        layout = _Layout(int(values["top"]), int(values["id_bytes"]), owner)
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, "its first line is another") from error
    if line != layout.header:
        raise _damaged(
            path, f"its first line is of version {values.get('version')!r}, or of other answers"
        )
    return layout


def _digest(previous: bytes, check: str, payload: bytes) -> bytes:
    return hashlib.sha256(previous + check.encode() + payload).digest()[:DIGEST_BYTES]


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"top tokens {str(path)!r}: got a file that cannot be used, as {reason}; expected the one"
        " written with its answers. Delete both, and record the answers again."
    )
