"""Store the target's top-k tokens at each position of recorded answers.

The file has the name of the answers file plus the suffix ".top", such as `answers.jsonl.top`. The
first line is a JSON object. It contains the kind, the version, the number of tokens per position,
the number of bytes per id, and the checksum of the first line of the answers file. One block per
answer follows. The block for an answer of n tokens consists of:

- Token ids, [n, k], little-endian.
- Log-probabilities, float16 [n, k], little-endian.
- The first 8 bytes of a SHA-256 digest. The digest covers the previous block's digest, the checksum
  of the answer's line in the answers file, and this block's ids and log-probabilities.

A recording writes the block of an answer before the answer itself. If a recording was interrupted,
the next run removes all blocks without a complete answer.
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

    Row i contains the target's predictions for the i-th token of the answer.

    Attributes:
        token_ids: Token ids, [n, k].
        log_probs: Log-probabilities at temperature 1 and without penalties, float32 [n, k]. Files
            store them with a precision of three digits.
    """

    token_ids: NDArray[np.int64]
    log_probs: NDArray[np.float32]


class AnswerKey(NamedTuple):
    """Checksum and length that identify an answer in the file of top-k tokens.

    Attributes:
        check: Checksum of the answer's line in the answers file.
        length: Number of tokens in the answer.
    """

    check: str
    length: int


class TopFile:
    """Writes the file of top-k tokens that belongs to a file of recorded answers.

    Args:
        answers: Path of the answers file. The top-k tokens file has this path and a suffix.
        top: Number of top-k tokens per position.
        vocab_size: Size of the vocabulary, which determines the number of bytes per token id.
        owner: Checksum of the first line of the answers file.
        keys: Complete answers in the answers file. An existing file of top-k tokens must contain a
            block for each of these answers. The constructor removes all later blocks. If `keys` is
            empty, the constructor creates the file.
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
                raise _damaged(self._path, "it contains something else")
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
    """Return the path of the top-k tokens file that belongs to an answers file."""
    return Path(f"{answers}.top")


def read_rows(answers: str | Path, keys: Iterable[AnswerKey], owner: str) -> Iterator[TopRows]:
    """Read and verify the file of top-k tokens, and yield the tokens of every answer.

    Args:
        answers: Path of the answers file.
        keys: Answers to read: the first answers of the answers file, in order.
        owner: Checksum of the first line of the answers file.
    Raises:
        ConfigError: The file of top-k tokens is missing, belongs to other answers, or has a damaged
            block.
    """
    for rows, _ in _blocks(Path(answers), keys, owner):
        yield rows


class _Layout(NamedTuple):
    """The layout of a file of top-k tokens, as described by its first line.

    Attributes:
        top: Number of top-k tokens per position.
        id_bytes: Number of bytes per token id, 2 or 4.
        owner: Checksum of the first line of the answers file.
    """

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
        """Encode an answer's top-k tokens as a block without the digest."""
        return (
            rows.token_ids.astype(f"<u{self.id_bytes}").tobytes()
            + rows.log_probs.astype("<f2").tobytes()
        )

    def rows(self, payload: bytes, length: int) -> TopRows:
        """Decode a block's bytes to the top-k tokens of an answer with `length` tokens."""
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
    """Read and verify all blocks, and yield each answer's top-k tokens and digest."""
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

    Raise `ConfigError` unless the line contains `owner`, the checksum of the first line of the
    answers file.
    """
    line = file.readline(MAX_FIRST_TOP_LINE)
    try:
        values = parse_json(line)
        layout = _Layout(int(values["top"]), int(values["id_bytes"]), owner)
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, "its first line does not describe top tokens") from error
    if line != layout.header:
        raise _damaged(
            path, f"it has version {values.get('version')!r}, or belongs to other answers"
        )
    return layout


def _digest(previous: bytes, check: str, payload: bytes) -> bytes:
    return hashlib.sha256(previous + check.encode() + payload).digest()[:DIGEST_BYTES]


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"top tokens {str(path)!r}: got a file that cannot be used: {reason}; expected the file"
        " written with the answers. Delete both files, and record the answers again."
    )
