"""Where the newest tokens of one request occurred before: chains of earlier n-grams over prompt and output, compiled.

For n of `SIZES` each place is linked to the one before it whose n-gram falls into the same bucket. A token costs the same
whatever the text, can be found as soon as it is there, and memory is linear: 56 bytes a token of room. How long a match really is
(up to `LONGEST` tokens) is read from the text, so a chain may hold strangers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numba
import numba.extending
import numpy as np
from numba.core import types
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled, kernel

SIZES = (1, 2, 4, 8)  # n-grams that are linked
LONGEST = 32  # tokens of a match that are told apart
TEXT, LENGTH, PROMPT, PREVIOUS, CAPACITY, HEADS, STATE = range(7)  # columns of a row: addresses and sizes
COLUMNS = 7
# Columns of a job, one request of a batch: the address of its row, the range of its new tokens, most nodes and most levels of
# its tree, and, once done, the nodes it has.
JOB_ROW, JOB_BEGIN, JOB_END, JOB_NODES, JOB_LEVELS, JOB_SIZE = range(6)
JOB_COLUMNS = 6
STATES = 8  # numbers that a drafter may keep with each request
_LEAST = 512
_BUCKETS = 2  # per token of room; a power of two, as the room is


class Text(NamedTuple):
    """One request as compiled code sees it.

    Attributes:
        ids: [capacity] tokens, of which `length` count; the first `prompt` are the prompt.
        previous: [4, capacity] the place before with the same bucket, -1 = none. heads: [4, buckets] the latest one.
    """

    ids: NDArray[np.int64]
    previous: NDArray[np.int32]
    heads: NDArray[np.int32]
    length: int
    prompt: int


def _pointer_of(typing_context: Any, address: Any) -> Any:
    """An address (int64) as a pointer."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), emit


_pointer = numba.extending.intrinsic(_pointer_of)


@compiled
def row_at(address: int) -> NDArray[np.int64]:
    """The row at an address."""
    row: NDArray[np.int64] = numba.carray(_pointer(address), (COLUMNS,), np.int64)
    return row


@compiled
def text_of(row: NDArray[np.int64]) -> Text:
    """The request behind a row."""
    room = row[CAPACITY]
    ids = numba.carray(_pointer(row[TEXT]), (room,), np.int64)
    previous = numba.carray(_pointer(row[PREVIOUS]), (len(SIZES), room), np.int32)
    heads = numba.carray(_pointer(row[HEADS]), (len(SIZES), _BUCKETS * room), np.int32)
    return Text(ids, previous, heads, row[LENGTH], row[PROMPT])


@compiled
def state_of(row: NDArray[np.int64]) -> NDArray[np.float64]:
    """[STATES] the numbers kept with a request."""
    state: NDArray[np.float64] = numba.carray(_pointer(row[STATE]), (STATES,), np.float64)
    return state


@kernel
def _mixed(mixed: np.uint64, token: int) -> np.uint64:
    mixed = (mixed ^ np.uint64(token)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@kernel
def _bucket_of(mixed: np.uint64, buckets: int) -> int:
    return int((mixed >> np.uint64(7)) & np.uint64(buckets - 1))


@kernel
def bucket(ids: NDArray[np.int64], end: int, size: int, buckets: int) -> int:
    """Bucket of the n-gram ids[end - size:end]; `buckets` is a power of two."""
    mixed = np.uint64(size)
    for index in range(end - size, end):
        mixed = _mixed(mixed, ids[index])
    return _bucket_of(mixed, buckets)


@kernel
def last_place(text: Text, token: int) -> int:
    """The latest place of a token; -1 if it is not there, or a later one has its bucket."""
    place = int(text.heads[0, _bucket_of(_mixed(np.uint64(SIZES[0]), token), text.heads.shape[1])])
    return place if place >= 0 and text.ids[place] == token else -1


@kernel
def link(text: Text, begin: int, end: int) -> None:
    """Take the tokens of places [begin, end) into the chains."""
    buckets = text.heads.shape[1]
    for place in range(begin, end):
        for kind in range(len(SIZES)):
            if place + 1 < SIZES[kind]:
                text.previous[kind, place] = -1
                continue
            at = bucket(text.ids, place + 1, SIZES[kind], buckets)
            text.previous[kind, place] = text.heads[kind, at]
            text.heads[kind, at] = place


@compiled
def extend(row: NDArray[np.int64], fresh: NDArray[np.int64]) -> Text:
    """Append tokens for which there is room; the request with them."""
    text = text_of(row)
    begin = text.length
    text.ids[begin : begin + fresh.size] = fresh
    link(text, begin, begin + fresh.size)
    row[LENGTH] = begin + fresh.size
    return text_of(row)


@kernel
def matched(text: Text, place: int, tail: NDArray[np.int64], begin: int, end: int) -> int:
    """How many tokens up to and with `place` equal the last ones of tail[begin:end], up to LONGEST."""
    most = min(end - begin, place + 1, LONGEST)
    length = 0
    while length < most and text.ids[place - length] == tail[end - 1 - length]:
        length += 1
    return length


@kernel
def occurrences(
    text: Text,
    kind: int,
    tail: NDArray[np.int64],
    begin: int,
    end: int,
    below: int,
    out: NDArray[np.int64],
    count: int,
    most: int,
) -> int:
    """Earlier places of the last SIZES[kind] tokens of tail[begin:end], the latest first.

    Args:
        below: matches of at least this many tokens are left out; something follows each place.
        out: [room, 2] filled from row `count` on: the place behind the match, and its length in tokens.
        most: links that are followed.
    Returns:
        how many rows of `out` are filled now.
    """
    size = SIZES[kind]
    if end - begin < size:
        return count
    place = int(text.heads[kind, bucket(tail, end, size, text.heads.shape[1])])
    for _ in range(most):
        if place < 0 or count >= len(out):
            break
        if place < text.length - 1:
            length = matched(text, place, tail, begin, end)
            if size <= length < below:
                out[count, 0], out[count, 1] = place + 1, length
                count += 1
        place = int(text.previous[kind, place])
    return count


class RequestIndex:
    """Prompt and output of one request, in arrays that compiled code reads through `row`.

    Args:
        prompt: how many of its tokens will be the prompt.
    Attributes:
        row: [COLUMNS] addresses and sizes; valid while this object lives and until `reserve` is called again. address: of it.
        state: [STATES] numbers of the drafter.
    """

    def __init__(self, prompt: int = 0) -> None:
        self.row = np.zeros(COLUMNS, dtype=np.int64)
        self.row[PROMPT] = prompt
        self.address = int(self.row.ctypes.data)
        self.state = np.zeros(STATES, dtype=np.float64)
        self._allocate(_LEAST)

    def __len__(self) -> int:
        return int(self.row[LENGTH])

    def reserve(self, length: int) -> None:
        """Room for `length` tokens in all."""
        if length <= self._ids.size:
            return
        old, count = self._ids, len(self)
        self._allocate(1 << (length - 1).bit_length())
        self.row[LENGTH] = 0
        extend(self.row, old[:count])

    def append(self, token_ids: Seq[int]) -> None:
        """Append tokens, from Python."""
        self.reserve(len(self) + len(token_ids))
        extend(self.row, np.array(token_ids, dtype=np.int64))

    def find(self, *, most: int = 64) -> list[tuple[int, int]]:
        """(place behind the match, its length) of earlier occurrences of the newest tokens, each once.

        Args:
            most: links followed for each n-gram size.
        """
        length = len(self)
        tail = self._ids[max(0, length - LONGEST) : length].copy()
        out = np.empty((most * len(SIZES), 2), dtype=np.int64)
        count, below = 0, LONGEST + 1
        for kind in range(len(SIZES) - 1, -1, -1):
            count = occurrences(text_of(self.row), kind, tail, 0, tail.size, below, out, count, most)
            below = SIZES[kind]
        return [(int(place), int(size)) for place, size in out[:count]]

    def _allocate(self, room: int) -> None:
        self._ids = np.empty(room, dtype=np.int64)
        self._previous = np.empty((len(SIZES), room), dtype=np.int32)
        self._heads = np.full((len(SIZES), _BUCKETS * room), -1, dtype=np.int32)
        self.row[TEXT], self.row[CAPACITY] = self._ids.ctypes.data, room
        self.row[PREVIOUS], self.row[HEADS] = self._previous.ctypes.data, self._heads.ctypes.data
        self.row[STATE] = self.state.ctypes.data
