"""Save cached distributions and their calibration to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.datastore import fingerprint_of
from paceline.drafters.shared.recycled import TOP, SuccessorTable, restore
from paceline.drafters.shared.source_calibration import CELLS, SourceCalibration
from paceline.drafters.shared.state_file import Arrays, FileKind, Head, StateFile
from paceline.errors import ConfigError

_KIND = FileKind(
    "paceline kept distributions",
    "3",
    (
        "keys",
        "sizes",
        "tokens",
        "probs",
        "hits",
        "trials",
    ),  # [n], [n], [n, TOP], [n, TOP]; [CELLS], [CELLS]
    "Delete it or name another file.",
)
_TYPES = {
    "keys": np.uint64,
    "sizes": np.int32,
    "tokens": np.int32,
    "probs": np.float32,
    "hits": np.float64,
    "trials": np.float64,
}


class SuccessorTableFile(StateFile):
    """A file with cached next-token distributions and their calibration.

    The constructor loads the file if it exists. A new file is saved only after the engine has
    called `check_vocabulary`, which sets the vocabulary size.

    Args:
        path: File to load and save.
        table: Table of distributions, to be filled from the file.
        calibration: Calibration to be filled from the file.
    Raises:
        ConfigError: The file is damaged or invalid, or its folder does not exist.
    """

    def __init__(self, path: str, table: SuccessorTable, calibration: SourceCalibration) -> None:
        super().__init__(path)
        self._table, self._calibration = table, calibration
        self._vocab_size = self._tokenizer = ""  # unknown until loaded or checked
        loaded = self.load(read_table)
        if loaded is not None:
            head, arrays = loaded
            self._vocab_size, self._tokenizer = head["vocab_size"], head["tokenizer"]
            restore(table, *(arrays[name] for name in _KIND.arrays[:4]))
            calibration.hits[:], calibration.trials[:] = arrays["hits"], arrays["trials"]

    def check_vocabulary(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Raise an error if the file was written for a different vocabulary.

        Args:
            vocab_size: Number of rows in the model's LM head.
            tokenizer: Tokenizer of the model. If the file was written with the same tokenizer, the
                number of padding rows in the LM head may differ.
        Raises:
            ConfigError: The vocabularies differ; the message gives both sizes.
        """
        if (
            self._tokenizer
            and fingerprint_of(tokenizer) == self._tokenizer
            and self._highest_id() < vocab_size
        ):
            self._vocab_size = str(vocab_size)
        self._vocab_size = self._vocab_size or str(vocab_size)
        _KIND.check_vocabulary(self.path, self._vocab_size, vocab_size)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Reject a file whose tokenizer is known and differs from the given one.

        Raises:
            ConfigError: The tokenizers differ; the message gives both fingerprints.
        """
        given = fingerprint_of(tokenizer) or ""
        self._tokenizer = self._tokenizer or given
        if given not in ("", self._tokenizer):
            _KIND.refuse(self.path, f"ids of the tokenizer {self._tokenizer}", given)

    def _highest_id(self) -> int:
        _, filled = entries_of(self._table)
        there = np.arange(TOP) < _sizes(filled)[:, None]
        return int(filled["tokens"].max(initial=-1, where=there))

    def save(self) -> None:
        """Write the file immediately.

        Raises:
            ConfigError: The file cannot be written, or the vocabulary is unknown because no engine
                has used the drafter.
        """
        if not self._vocab_size:
            raise ConfigError(
                f"pool {str(self.path)!r}: the vocabulary is unknown, because no engine has used"
                " the drafter yet. Use it in an LLM first."
            )
        super().save()

    def content(self) -> bytes:
        """Return the current table in the format of the file, with the oldest entry first."""
        keys, filled = entries_of(self._table)
        sizes = _sizes(filled)
        beyond = np.arange(TOP) >= sizes[:, None]  # leftovers of overwritten distributions
        columns = (
            keys,
            sizes,
            np.where(beyond, 0, filled["tokens"]),
            np.where(beyond, 0, filled["probs"]),
            self._calibration.hits,
            self._calibration.trials,
        )
        arrays = {
            name: np.ascontiguousarray(column, _TYPES[name])
            for name, column in zip(_KIND.arrays, columns, strict=True)
        }
        return _KIND.to_bytes(arrays, vocab_size=self._vocab_size, tokenizer=self._tokenizer)


def entries_of(table: SuccessorTable) -> tuple[NDArray[np.uint64], NDArray[np.void]]:
    """Return the keys of a table and their cached distributions, oldest first."""
    slots = cast(NDArray[np.void], table.slots)
    entries = cast(NDArray[np.void], table.entries)
    used = np.flatnonzero(slots["key"])
    ordered = used[np.argsort(slots["written"][used])]
    return slots["key"][ordered], entries[ordered]


def _sizes(entries: NDArray[np.void]) -> IntArray:
    """Return the number of next tokens in each cached distribution, [n]."""
    sizes: IntArray = np.minimum.accumulate(entries["probs"] > 0, axis=1).sum(axis=1)
    return sizes


def read_table(path: Path) -> tuple[Head, Arrays]:
    """Read and check the header and the arrays of a file.

    Raises:
        ConfigError: The file is unreadable or damaged, or its format or version is different.
    """
    head, arrays = _KIND.read(path)
    rows = len(arrays["keys"])
    shapes = dict(
        zip(
            _KIND.arrays,
            ((rows,), (rows,), (rows, TOP), (rows, TOP), (CELLS,), (CELLS,)),
            strict=True,
        )
    )
    if any(
        arrays[name].shape != shapes[name] or arrays[name].dtype != _TYPES[name] for name in shapes
    ):
        _KIND.refuse(
            path, "arrays of other shapes", f"distributions of {TOP} tokens and {CELLS} counts"
        )
    sizes, tokens, vocab_size = arrays["sizes"], arrays["tokens"], head["vocab_size"]
    if rows and not (
        sizes.min() >= 0
        and sizes.max() <= TOP
        and tokens.min() >= 0
        and tokens.max() < int(vocab_size)
    ):
        _KIND.refuse(path, f"ids up to {tokens.max()}", f"ids below its vocabulary of {vocab_size}")
    return head, arrays
