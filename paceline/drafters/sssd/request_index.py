"""Index the n-grams of a request's prompt and output, for compiled code.

For each n in `NGRAM_SIZES`, the index assigns every n-gram to a bucket. Each position is linked to
the previous position whose n-gram is in the same bucket. The links of a bucket form a chain, as in
a chained hash table. For example, for n = 2 and the request 5 1 2 7 1 2 8 1 2:

    position == 0  1  2  3  4  5  6  7  8
    token    == 5  1  2  7  1  2  8  1  2
    previous == -  -  -  -  -  2  -  -  5        heads[bucket of "1 2"] is 8, the newest position

From the head, the links lead to all positions of "1 2": 8, 5, 2. Adding a token takes constant
time. The index needs 56 bytes of memory per token of capacity. A chain may also contain other
n-grams in the same bucket, so match lengths (up to `LONGEST` tokens) are computed from the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numba.extending
import numpy as np
from numba.core import types
from numpy.typing import NDArray

from paceline.datastore.rows import Query
from paceline.drafters.sssd.pointers import POINTER, Pointer
from paceline.drafters.sssd.settings import BUCKETS_PER_TOKEN, LONGEST, MIN_ROOM, NGRAM_SIZES
from paceline.util.compiled import Records, compiled, kernel, record_dtype, subroutine


class RequestState:
    """A request's array addresses and drafting history, for compiled code.

    Attributes:
        ids: Address of the tokens, [room].
        previous: Address of the links from each position to the previous one in the same hash
            bucket, [len(NGRAM_SIZES), room].
        heads: Address of the newest position in each hash bucket, [len(NGRAM_SIZES), buckets].
        room: Capacity, in tokens.
        length: Number of tokens.
        prompt_length: Number of tokens in the prompt.
        started: 1 once the first tree has been drafted.
        accepted: Running mean of the number of accepted draft tokens per step.
        request_hits: Running fraction of steps in which `request_guess` was correct.
        store_hits: Running fraction of steps in which `store_guess` was correct.
        request_guess: Token after the longest match in the request; -1 if there is none.
        store_guess: Token after the longest match in the datastore; -1 if there is none.
        copy_position: Position from which the next token would be copied; negative if none.
    """

    ids: int
    previous: int
    heads: int
    room: int
    length: int
    prompt_length: int
    started: int
    accepted: float
    request_hits: float
    store_hits: float
    request_guess: int
    store_guess: int
    copy_position: int


REQUEST_ROW = record_dtype(RequestState)


class RequestText(NamedTuple):
    """A request's text and n-gram index, as arrays for compiled code.

    Attributes:
        ids: Tokens, [room], of which `length` are used; the first `prompt_length` are the prompt.
        previous: Previous position in the same hash bucket, [n-gram sizes, room]; -1 if none.
        heads: Newest position in each hash bucket, [n-gram sizes, buckets].
    """

    ids: NDArray[np.int64]
    previous: NDArray[np.int32]
    heads: NDArray[np.int32]
    length: int
    prompt_length: int


def _pointer_of(typing_context: Any, address: Any) -> Any:
    """Return the signature and the code generator of a cast from address to pointer."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), emit


_pointer = numba.extending.intrinsic(_pointer_of)


@compiled
def request_at(address: int) -> RequestState:
    """Return the request state at a memory address, for reading and writing in place."""
    requests: Any = numba.carray(_pointer(address), (1,), REQUEST_ROW)
    request: RequestState = requests[0]
    return request


@subroutine
def text_of(request: RequestState) -> RequestText:
    """Return a request's text and its index, as views of the request's arrays."""
    room = request.room
    ids = numba.carray(_pointer(request.ids), (room,), np.int64)
    previous = numba.carray(_pointer(request.previous), (len(NGRAM_SIZES), room), np.int32)
    heads = numba.carray(
        _pointer(request.heads), (len(NGRAM_SIZES), BUCKETS_PER_TOKEN * room), np.int32
    )
    return RequestText(ids, previous, heads, request.length, request.prompt_length)


@kernel
def _mixed(mixed: np.uint64, token: int) -> np.uint64:
    mixed = (mixed ^ np.uint64(token)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@kernel
def _bucket_of(mixed: np.uint64, buckets: int) -> int:
    return int((mixed >> np.uint64(7)) & np.uint64(buckets - 1))


@kernel
def bucket(ids: NDArray[np.int64], end: int, size: int, buckets: int) -> int:
    """Return the index of the hash bucket for the n-gram ids[end - size:end]."""
    mixed = np.uint64(size)
    for index in range(end - size, end):
        mixed = _mixed(mixed, ids[index])
    return _bucket_of(mixed, buckets)


@kernel
def last_position(text: RequestText, token: int) -> int:
    """Return a token's latest position according to the index; -1 if it is unknown."""
    mixed = _mixed(np.uint64(NGRAM_SIZES[0]), token)
    position = int(text.heads[0, _bucket_of(mixed, text.heads.shape[1])])
    return position if position >= 0 and text.ids[position] == token else -1


@kernel
def link(text: RequestText, begin: int, end: int) -> None:
    """Add the n-grams that end at positions [begin, end) to their hash buckets."""
    buckets = text.heads.shape[1]
    for position in range(begin, end):
        for size_index in range(len(NGRAM_SIZES)):
            if position + 1 < NGRAM_SIZES[size_index]:
                text.previous[size_index, position] = -1
                continue
            slot = bucket(text.ids, position + 1, NGRAM_SIZES[size_index], buckets)
            text.previous[size_index, position] = text.heads[size_index, slot]
            text.heads[size_index, slot] = position


@subroutine
def extend(request: RequestState, new_tokens: NDArray[np.int64]) -> RequestText:
    """Append tokens to a request, and return its text; the arrays must have room."""
    text = text_of(request)
    begin = text.length
    for index in range(new_tokens.size):  # compiles faster than an assignment to a slice
        text.ids[begin + index] = new_tokens[index]
    link(text, begin, begin + new_tokens.size)
    request.length = begin + new_tokens.size
    return text_of(request)


@compiled
def _extend_at(address: int, new_tokens: NDArray[np.int64]) -> None:
    """Append tokens to the request whose state is at a memory address."""
    extend(request_at(address), new_tokens)


@kernel
def match_length(text: RequestText, position: int, query: Query) -> int:
    """Return how many tokens ending at `position` match the end of the query."""
    longest = min(query.end - query.begin, position + 1, LONGEST)
    length = 0
    while length < longest and text.ids[position - length] == query.ids[query.end - 1 - length]:
        length += 1
    return length


@kernel
def occurrences(
    text: RequestText,
    size_index: int,
    query: Query,
    below: int,
    out: Records[Pointer],
    count: int,
    max_links: int,
) -> int:
    """Find earlier positions of the last tokens of a query, latest first.

    Args:
        text: Text of the request.
        size_index: Index of the n-gram size in NGRAM_SIZES.
        query: Text to match.
        below: Matches of this length or more are skipped.
        out: Output, [room]: the position after each match and the match's length. The function
            writes from index `count` onwards.
        count: Number of filled entries so far.
        max_links: Maximum number of links to follow in the chain of positions.
    Returns:
        The number of filled entries.
    """
    size = NGRAM_SIZES[size_index]
    if query.end - query.begin < size:
        return count
    head = bucket(query.ids, query.end, size, text.heads.shape[1])
    position = int(text.heads[size_index, head])
    for _ in range(max_links):
        if position < 0 or count >= len(out):
            break
        if position < text.length - 1:
            length = match_length(text, position, query)
            if size <= length < below:
                out[count].position, out[count].match = position + 1, length
                count += 1
        position = int(text.previous[size_index, position])
    return count


class RequestIndex:
    """Allocates the arrays of one request, which compiled code reads and updates.

    Args:
        prompt_length: Number of tokens in the prompt.
    Attributes:
        request: Record of type REQUEST_ROW, [1]. It is valid until this object is deleted or
            `reserve` is called.
        address: Memory address of `request`.
    """

    def __init__(self, prompt_length: int = 0) -> None:
        self.request: NDArray[np.void] = np.zeros(1, dtype=REQUEST_ROW)
        self.request["prompt_length"] = prompt_length
        self.address = int(self.request.ctypes.data)
        self._length = self.request["length"].data  # faster to read than an array
        self._allocate(MIN_ROOM)

    def __len__(self) -> int:
        return int(self._length[0])

    def reserve(self, length: int) -> None:
        """Enlarge the arrays if needed, so that they have room for `length` tokens."""
        if length <= self._ids.size:
            return
        old, count = self._ids, len(self)
        self._allocate(1 << (length - 1).bit_length())
        self._length[0] = 0
        _extend_at(self.address, old[:count])

    def append(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the request (compiled code calls `extend` instead)."""
        self.reserve(len(self) + len(token_ids))
        _extend_at(self.address, np.array(token_ids, dtype=np.int64))

    def find(self, *, max_links: int = 64) -> list[tuple[int, int]]:
        """Return earlier matches, each as (position directly after the match, length).

        Args:
            max_links: Maximum number of links to follow per n-gram size.
        """
        matches: NDArray[np.void] = np.empty(max_links * len(NGRAM_SIZES), dtype=POINTER)
        count = _find_at(self.address, matches, max_links)
        positions, lengths = matches["position"][:count], matches["match"][:count]
        return list(zip(positions.tolist(), lengths.tolist(), strict=True))

    def _allocate(self, room: int) -> None:
        self._ids = np.empty(room, dtype=np.int64)
        self._previous = np.empty((len(NGRAM_SIZES), room), dtype=np.int32)
        self._heads = np.full((len(NGRAM_SIZES), BUCKETS_PER_TOKEN * room), -1, dtype=np.int32)
        self.request["room"] = room
        for name, array in (
            ("ids", self._ids),
            ("previous", self._previous),
            ("heads", self._heads),
        ):
            self.request[name] = array.ctypes.data


@compiled
def _find_at(address: int, out: Records[Pointer], max_links: int) -> int:
    """Write earlier occurrences of the newest tokens to `out`; return their number."""
    text = text_of(request_at(address))
    tail = text.ids[max(0, text.length - LONGEST) : text.length]
    count, below = 0, LONGEST + 1
    for size_index in range(len(NGRAM_SIZES) - 1, -1, -1):
        count = occurrences(
            text, size_index, Query(tail, 0, tail.size), below, out, count, max_links
        )
        below = NGRAM_SIZES[size_index]
    return count
