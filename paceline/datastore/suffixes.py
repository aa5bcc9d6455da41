"""Build the suffix arrays of token sequences.

The sort compares only the first SORTED_TOKENS tokens of every suffix, because no search compares
more tokens. The running time is therefore linear in the length of the text, even in the worst case,
such as a single repeated token. The sort has three steps:

1. A counting sort puts the suffixes into buckets by their first token.
2. A three-way quicksort sorts each bucket by 64-bit keys, which pack the next few tokens.
3. Suffixes with equal keys form a run, which is sorted by the tokens after those in the key. Short
   runs use insertion sort. Long runs use step 2 again, with new keys.

The buckets are independent, so several threads can sort them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.pair_sort import MAX_PENDING, sort_pairs
from paceline.datastore.store_settings import (
    MAX_BUCKETS,
    MIN_BUCKETS,
    MIN_PART_TOKENS,
    PARTS_PER_WORKER,
    SHORT_RUN,
    SORTED_TOKENS,
)
from paceline.util.compiled import compiled, load_uint64

_MAX_LEVELS = 2 * SORTED_TOKENS + 2  # levels of runs within runs


class PackedText(NamedTuple):
    """A text, and the layout of the keys by which its suffixes are sorted.

    A sort key packs the next tokens of a suffix into 64 bits.

    Attributes:
        text: Tokens and separators, [n].
        bits: Number of bits per token in a key.
        max_value: Value in a key that stands for a separator or a position after the text. This
            value is greater than all tokens.
    """

    text: NDArray[np.uint32]
    bits: int
    max_value: int


class SortBuffers(NamedTuple):
    """The scratch arrays of one thread that sorts suffixes.

    A bucket contains the suffixes whose first token is in the same small range of ids.

    Attributes:
        keys: Sort keys of the suffixes in the current bucket, [size of the largest bucket].
        ends: For each level of the sort, the end of the range that is being sorted,
            [_MAX_LEVELS]. Level 0 sorts the whole bucket. Each deeper level sorts a run of suffixes
            whose keys at the level above are equal.
        pending: Bounds of the parts that quicksort has yet to sort, [MAX_PENDING].
    """

    keys: NDArray[np.uint64]
    ends: NDArray[np.int64]
    pending: NDArray[np.int64]


def suffix_array(
    text: NDArray[np.uint32],
    separator: int,
    workers: int = 1,
    done: Callable[[int], None] = lambda suffixes: None,
) -> NDArray[np.int32]:
    """Return the positions of all tokens, sorted by the suffixes that start there.

    Only the first SORTED_TOKENS tokens of each suffix are compared. In addition to the text, the
    sort needs 4 bytes of memory per token for the result. Each thread also needs 8 bytes for each
    suffix in the largest bucket. A bucket contains the suffixes whose first token is in the same
    small range of ids.

    Args:
        text: Documents, each followed by a separator, [n]; n < 2^31. The order of suffixes that
            differ only after a separator is undefined.
        separator: Value that is not a token in any document. The result omits separators.
        workers: Number of threads; default 1.
        done: Function called each time a part of the suffixes has been sorted, with the number of
            suffixes in that part.
    """
    max_token = int(text.max(initial=0, where=text != separator)) if text.size else 0
    shift = (max_token // min(MAX_BUCKETS, max(MIN_BUCKETS, text.size))).bit_length()
    starts = np.zeros((max_token >> shift) + 2, dtype=np.int64)
    _count_buckets(text, separator, shift, starts)
    array = np.empty(starts[-1], dtype=np.int32)
    _fill_buckets(text, separator, shift, starts[:-1].copy(), array)
    max_value = min(max_token + 1, 2**32 - 1)
    packed = PackedText(text, max_value.bit_length(), max_value)
    depth = 0 if shift else 1

    def sort_part(part: tuple[int, int]) -> int:
        first, last = part
        _sort_buckets(packed, array, starts[first : last + 1], depth)
        return int(starts[last] - starts[first])

    num_parts = min(workers * PARTS_PER_WORKER, 1 + text.size // MIN_PART_TOKENS)
    parts = _parts(starts, num_parts) if num_parts > 1 else [(0, starts.size - 1)]
    if workers == 1:  # without a thread, because no thread can be started while the process exits
        for part in parts:
            done(sort_part(part))
        return array
    with ThreadPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(sort_part, part) for part in parts]):
            done(future.result())
    return array


def _parts(starts: NDArray[np.int64], num_parts: int) -> list[tuple[int, int]]:
    """Divide the buckets into up to `num_parts` ranges of similar size.

    A bucket contains the suffixes whose first token is in the same small range of ids.
    """
    edges = np.linspace(0, starts[-1], num_parts + 1)[1:-1]
    cuts = np.unique(np.concatenate(([0], np.searchsorted(starts, edges), [starts.size - 1])))
    return [(int(first), int(last)) for first, last in pairwise(cuts)]


@compiled
def _count_buckets(
    text: NDArray[np.uint32], separator: int, shift: int, starts: NDArray[np.int64]
) -> None:
    """Write each bucket's first index in the suffix array to `starts` [buckets + 1].

    A bucket contains the suffixes whose first token is in the same small range of ids.
    """
    for token in text:
        if token != separator:
            starts[(np.int64(token) >> shift) + 1] += 1
    for bucket in range(1, starts.size):
        starts[bucket] += starts[bucket - 1]


@compiled
def _fill_buckets(
    text: NDArray[np.uint32],
    separator: int,
    shift: int,
    ends: NDArray[np.int64],
    array: NDArray[np.int32],
) -> None:
    """Write the position of every token to the token's bucket in the suffix array.

    A bucket is the range of the suffix array for suffixes whose first token is in the same small
    range of ids. `ends` [buckets] contains the index of the next free entry in each bucket. At the
    start, this is the bucket's first index. At the end, it is the index after the bucket.
    """
    for position in range(text.size):
        if text[position] != separator:
            bucket = np.int64(text[position]) >> shift
            array[ends[bucket]] = position
            ends[bucket] += 1


@compiled
def _sort_buckets(
    packed: PackedText, array: NDArray[np.int32], starts: NDArray[np.int64], depth: int
) -> None:
    """Sort the suffixes in each bucket.

    The suffixes in a bucket share their first `depth` tokens, where `depth` is 0 or 1.
    """
    largest = 0
    for bucket in range(starts.size - 1):
        largest = max(largest, starts[bucket + 1] - starts[bucket])
    buffers = SortBuffers(
        np.empty(largest, dtype=np.uint64),
        np.empty(_MAX_LEVELS, dtype=np.int64),
        np.empty(MAX_PENDING, dtype=np.int64),
    )
    for bucket in range(starts.size - 1):
        run = array[starts[bucket] : starts[bucket + 1]]
        if run.size > 1:
            _sort_bucket(packed, run, depth, buffers)


@compiled
def _sort_bucket(
    packed: PackedText, run: NDArray[np.int32], depth: int, buffers: SortBuffers
) -> None:
    """Sort a bucket's suffixes by their tokens from `depth` onwards.

    At level 0, the function sorts the whole bucket by keys, which contain a few tokens of each
    suffix. Suffixes with equal keys form a run. The next level sorts the run by the tokens that
    follow those in the keys, and so on.
    """
    keys, ends = buffers.keys[: run.size], buffers.ends
    step = min(64 // packed.bits, SORTED_TOKENS)  # tokens per key
    low, level = 0, 0
    ends[0] = run.size
    _sort_run(packed, run, keys, depth, buffers.pending)
    while level >= 0:
        high = ends[level]
        if low >= high:
            level -= 1
            continue
        end = low + 1
        while end < high and keys[end] == keys[low]:
            end += 1
        deeper = depth + (level + 1) * step
        if end - low == 1:
            low = end
        elif end - low <= SHORT_RUN:
            _insertion_sort(packed.text, run, low, end, deeper)
            low = end
        elif deeper >= SORTED_TOKENS:
            _sort_positions(run, keys, low, end, buffers.pending)
            low = end
        else:
            _sort_run(packed, run[low:end], keys[low:end], deeper, buffers.pending)
            level += 1
            ends[level] = end


@compiled
def _sort_run(
    packed: PackedText,
    run: NDArray[np.int32],
    keys: NDArray[np.uint64],
    depth: int,
    pending: NDArray[np.int64],
) -> None:
    """Sort suffixes by their tokens from `depth` onwards.

    Each suffix's next tokens are packed into a sort key, which is written to `keys`.
    """
    text, bits, max_value = packed
    step = min(64 // bits, SORTED_TOKENS)
    for index in range(run.size):
        start = np.int64(run[index]) + depth
        key = np.uint64(0)
        for position in range(start, start + step):
            token = np.int64(text[position]) if position < text.size else max_value
            if token > max_value:
                token = max_value
            key = (key << np.uint64(bits)) | np.uint64(token)
        keys[index] = key
    sort_pairs(keys, run, pending)


@compiled
def _sort_positions(
    run: NDArray[np.int32],
    keys: NDArray[np.uint64],
    low: int,
    high: int,
    pending: NDArray[np.int64],
) -> None:
    """Sort suffixes by position, because their first SORTED_TOKENS tokens are equal."""
    for index in range(low, high):
        keys[index] = np.uint64(run[index])
    sort_pairs(keys[low:high], run[low:high], pending)


@compiled
def _insertion_sort(
    text: NDArray[np.uint32], run: NDArray[np.int32], low: int, high: int, depth: int
) -> None:
    for index in range(low + 1, high):
        moving = run[index]
        hole = index
        while hole > low and _is_before(text, moving, run[hole - 1], depth):
            run[hole] = run[hole - 1]
            hole -= 1
        run[hole] = moving


@compiled
def _is_before(text: NDArray[np.uint32], left: int, right: int, depth: int) -> bool:
    """Return whether the left suffix precedes the right one.

    The two suffixes begin with the same `depth` tokens.
    """
    end = min(SORTED_TOKENS, text.size - max(left, right))
    left_address, right_address = text.ctypes.data + 4 * left, text.ctypes.data + 4 * right
    while depth + 4 <= end:  # four tokens at once
        offset = 4 * depth
        first = load_uint64(left_address + offset) ^ load_uint64(right_address + offset)
        offset += 8
        second = load_uint64(left_address + offset) ^ load_uint64(right_address + offset)
        if first | second:
            break
        depth += 4
    for offset in range(depth, end):
        if text[left + offset] != text[right + offset]:
            return bool(text[left + offset] < text[right + offset])
    return left < right
