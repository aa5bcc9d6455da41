"""Documents on their way into a shard: checked, counted, put one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.layout import MOST_VOCAB
from paceline.errors import DatastoreError

Document = Sequence[int] | NDArray[np.integer[Any]]
_LEAST_ROOM, _ROOM_SHARE = 1 << 16, 8


class Gathering:
    """The text of one shard as it grows: documents with a separator after each.

    Attributes:
        documents: how many. separator: a value that is none of their tokens.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        self._vocab_size, self._width = vocab_size, width
        self.clear()

    def clear(self) -> None:
        """Begin the next shard."""
        self._text = np.empty(_LEAST_ROOM, dtype=np.uint32)
        self._size, self.documents, self.separator = 0, 0, 256**self._width - 1

    def __len__(self) -> int:
        """Return the number of tokens and separators so far."""
        return self._size

    @property
    def tokens(self) -> int:
        """Return the number of tokens so far."""
        return self._size - self.documents

    def add(self, document: NDArray[np.uint32]) -> None:
        """Append one document, checked before."""
        self._reserve(document.size + 1)
        if self._vocab_size == MOST_VOCAB and (document == self.separator).any():
            self._change_separator(document)
        self._text[self._size : self._size + document.size] = document
        self._text[self._size + document.size] = self.separator
        self._size += document.size + 1
        self.documents += 1

    def add_text(self, text: NDArray[np.uint32], documents: int, separator: int) -> None:
        """Append what another shard holds; text is [n], a separator after each document."""
        if separator != self.separator or self._vocab_size == MOST_VOCAB:
            for document in np.split(text, np.flatnonzero(text == separator) + 1)[:-1]:
                self.add(document[:-1])
            return
        self._reserve(text.size)
        self._text[self._size : self._size + text.size] = text
        self._size += text.size
        self.documents += documents

    def text(self) -> NDArray[np.uint32]:
        """Return what came so far, [tokens + documents], without the spare room. Nothing may be
        added afterwards.
        """
        self._text.resize(self._size, refcheck=False)
        return self._text

    def _reserve(self, more: int) -> None:
        """Make room for `more` values; the block is moved by the system, not copied, so it is
        never there twice.
        """
        needed = self._size + more
        if needed > self._text.size:
            self._text.resize(
                max(needed, self._size + max(_LEAST_ROOM, self._size // _ROOM_SHARE)),
                refcheck=False,
            )

    def _change_separator(self, document: NDArray[np.uint32]) -> None:
        """Take the largest value that no document of the shard has, where all 2^32 values may be
        tokens.
        """
        text = self._text[: self._size]
        used = np.unique(np.concatenate((text[text != self.separator], document))).astype(np.int64)
        value = MOST_VOCAB - 1 if used[-1] < MOST_VOCAB - 1 else _gap_below(used)
        text[text == self.separator] = value
        self.separator = value


def _gap_below(used: NDArray[np.int64]) -> int:
    """Return the largest value below MOST_VOCAB that is not in `used`, sorted."""
    gaps = np.flatnonzero(np.diff(used, prepend=-1) > 1)
    return int(used[gaps[-1]]) - 1


def checked(document: Document, index: int, vocab_size: int) -> NDArray[np.uint32]:
    """Return a document as ids [n].

    Raises:
        DatastoreError: no sequence of integers, or an id that is not of the vocabulary.
    """
    try:
        ids = np.asarray(document)
    except (ValueError, OverflowError):
        ids = np.empty((0, 0))
    if ids.size == 0 and ids.ndim == 1:
        return np.empty(0, dtype=np.uint32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DatastoreError(
            f"document {index}: got {type(document).__name__} of {ids.dtype} with {ids.ndim}"
            " dimensions; expected a sequence of token ids (integers). Tokenize text first."
        )
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= vocab_size:
        raise DatastoreError(
            f"document {index}: got the token id {least if least < 0 else most}; expected 0 to"
            f" {vocab_size - 1}. Use the tokenizer of the store, or build one with a larger"
            " vocab_size."
        )
    return ids.astype(np.uint32, copy=False)
