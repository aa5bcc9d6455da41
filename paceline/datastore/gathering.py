"""Collect validated documents into the text of a datastore's shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.store_settings import MAX_VOCAB_SIZE, MIN_ROOM, ROOM_SHARE
from paceline.errors import DatastoreError

Document = Sequence[int] | NDArray[np.integer[Any]]


class Gathering:
    """Collects the text of one shard (part of a datastore).

    The text consists of documents, each followed by a separator.

    Args:
        vocab_size: Vocabulary size of the datastore.
        width: Number of bytes per token in the datastore.
    Attributes:
        documents: Number of documents.
        separator: Value that does not occur in any document.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        self._vocab_size, self._width = vocab_size, width
        self.clear()

    def clear(self) -> None:
        """Discard the text, so that the next shard starts empty."""
        self._text = np.empty(MIN_ROOM, dtype=np.uint32)
        self._size, self.documents, self.separator = 0, 0, 256**self._width - 1

    def __len__(self) -> int:
        """Return the number of tokens and separators."""
        return self._size

    @property
    def tokens(self) -> int:
        """Number of tokens without separators."""
        return self._size - self.documents

    def add(self, document: NDArray[np.uint32]) -> None:
        """Append a document returned by `checked`."""
        self._reserve(document.size + 1)
        if self._vocab_size == MAX_VOCAB_SIZE and (document == self.separator).any():
            self._change_separator(document)
        self._text[self._size : self._size + document.size] = document
        self._text[self._size + document.size] = self.separator
        self._size += document.size + 1
        self.documents += 1

    def add_text(self, text: NDArray[np.uint32], documents: int, separator: int) -> None:
        """Append the text of another shard of a datastore.

        Args:
            text: Documents, each followed by a separator, [n].
            documents: Number of documents.
            separator: Separator used in that shard.
        """
        if separator != self.separator or self._vocab_size == MAX_VOCAB_SIZE:
            for document in np.split(text, np.flatnonzero(text == separator) + 1)[:-1]:
                self.add(document[:-1])
            return
        self._reserve(text.size)
        self._text[self._size : self._size + text.size] = text
        self._size += text.size
        self.documents += documents

    def text(self) -> NDArray[np.uint32]:
        """Return the text [tokens + documents]; nothing may be added after this call."""
        self._text.resize(self._size, refcheck=False)
        return self._text

    def _reserve(self, more: int) -> None:
        # `resize` lets the system move the memory block, so the text is never in memory twice.
        needed = self._size + more
        if needed > self._text.size:
            self._text.resize(
                max(needed, self._size + max(MIN_ROOM, self._size // ROOM_SHARE)),
                refcheck=False,
            )

    def _change_separator(self, document: NDArray[np.uint32]) -> None:
        """Replace the separator with the largest value that no document contains.

        The method is called if the next document, `document`, contains the current separator. A
        fixed separator would not work if the vocabulary used all 2^32 values.
        """
        text = self._text[: self._size]
        used = np.unique(np.concatenate((text[text != self.separator], document))).astype(np.int64)
        value = MAX_VOCAB_SIZE - 1 if used[-1] < MAX_VOCAB_SIZE - 1 else _gap_below(used)
        text[text == self.separator] = value
        self.separator = value


def _gap_below(used: NDArray[np.int64]) -> int:
    """Return the largest value below MAX_VOCAB_SIZE that is not in `used` (sorted)."""
    gaps = np.flatnonzero(np.diff(used, prepend=-1) > 1)
    return int(used[gaps[-1]]) - 1


def checked(document: Document, index: int, vocab_size: int) -> NDArray[np.uint32]:
    """Validate a document, and return it as an array of ids [n].

    Args:
        document: Token ids.
        index: Index of the document, for error messages.
        vocab_size: Vocabulary size; ids must be below it.
    Raises:
        DatastoreError: The document is not a sequence of integers, or an id is out of range.
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
    min_id, max_id = int(ids.min()), int(ids.max())
    if min_id < 0 or max_id >= vocab_size:
        raise DatastoreError(
            f"document {index}: got the token id {min_id if min_id < 0 else max_id}; expected 0 to"
            f" {vocab_size - 1}. Use the tokenizer of the store, or build one with a larger"
            " \0vocab_size\0."
        )
    return ids.astype(np.uint32, copy=False)
