"""Suffix arrays over integer tokens, sorted by the first `SORTED` tokens of every suffix.

Nothing that searches a store looks deeper than `SORTED` tokens, so the sort stops there: its worst
case is linear in the text (a corpus of one repeated token included), where a full suffix array
needs an algorithm for just that case. Method: counting sort by the first token, then, in each of
those buckets, a three-way quicksort of as many following tokens as fit a 64-bit key, and so on in
the runs of equal keys; short runs are sorted by comparing. Buckets are independent of one another
and are sorted by several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.store_settings import SORTED
from paceline.util.compiled import compiled, load_uint64

_SHORT = 12  # runs up to this size are sorted by comparing
# no more than tokens, for a small text of a large vocabulary
_LEAST_BUCKETS, _MOST_BUCKETS = (1 << 12, 1 << 22)
_PARTS_PER_WORKER = 16
_DEEPEST = 2 * SORTED + 2


def suffix_array(
    text: NDArray[np.uint32],
    separator: int,
    workers: int = 1,
    done: Callable[[int], None] = lambda suffixes: None,
) -> NDArray[np.int32]:
    """Return the positions of all tokens of `text` but the separators, sorted by the `SORTED`
    tokens from there on (unsigned).

    Args:
        text: [n] documents, a separator after each one; n < 2^31. The order of suffixes past a
            separator is not defined.
        separator: no token of a document has this value.
        done: called with the number of suffixes sorted, a part at a time.
    Memory: 4 bytes a token for the text, 4 for the array, and 8 for each token of the largest
        bucket of every worker.
    """
    most = int(text.max(initial=0, where=text != separator)) if text.size else 0
    shift = (most // min(_MOST_BUCKETS, max(_LEAST_BUCKETS, text.size))).bit_length()
    starts = np.zeros((most >> shift) + 2, dtype=np.int64)
    _count_buckets(text, separator, shift, starts)
    array = np.empty(starts[-1], dtype=np.int32)
    _fill_buckets(text, separator, shift, starts[:-1].copy(), array)
    above = min(most + 1, 2**32 - 1)
    bits = above.bit_length()
    depth = 0 if shift else 1

    def sort_part(part: tuple[int, int]) -> int:
        first, last = part
        _sort_buckets(text, array, starts[first : last + 1], depth, bits, above)
        return int(starts[last] - starts[first])

    edges = np.linspace(0, starts[-1], workers * _PARTS_PER_WORKER + 1)[1:-1]
    cuts = np.unique(np.concatenate(([0], np.searchsorted(starts, edges), [starts.size - 1])))
    parts = [(int(first), int(last)) for first, last in pairwise(cuts)]
    if workers == 1:  # no thread: at the end of a process none can be started
        for part in parts:
            done(sort_part(part))
        return array
    with ThreadPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(sort_part, part) for part in parts]):
            done(future.result())
    return array


@compiled
def _count_buckets(
    text: NDArray[np.uint32], separator: int, shift: int, starts: NDArray[np.int64]
) -> None:
    """Fill starts [buckets + 1]: where the suffixes of each bucket (first token >> shift) begin
    in the suffix array.
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
    """Put the position of every token into its bucket; ends [buckets] comes as their starts and
    is used up.
    """
    for position in range(text.size):
        if text[position] != separator:
            bucket = np.int64(text[position]) >> shift
            array[ends[bucket]] = position
            ends[bucket] += 1


@compiled
def _sort_buckets(
    text: NDArray[np.uint32],
    array: NDArray[np.int32],
    starts: NDArray[np.int64],
    depth: int,
    bits: int,
    above: int,
) -> None:
    """Sort the buckets between `starts`, whose suffixes agree in their first `depth` tokens (0
    or 1).
    """
    largest = 0
    for bucket in range(starts.size - 1):
        largest = max(largest, starts[bucket + 1] - starts[bucket])
    keys = np.empty(largest, dtype=np.uint64)
    ends, todo = np.empty(_DEEPEST, dtype=np.int64), np.empty(256, dtype=np.int64)
    for bucket in range(starts.size - 1):
        run = array[starts[bucket] : starts[bucket + 1]]
        if run.size > 1:
            _sort_bucket(text, run, keys[: run.size], depth, bits, above, ends, todo)


@compiled
def _sort_bucket(
    text: NDArray[np.uint32],
    run: NDArray[np.int32],
    keys: NDArray[np.uint64],
    depth: int,
    bits: int,
    above: int,
    ends: NDArray[np.int64],
    todo: NDArray[np.int64],
) -> None:
    """Sort `run` by the tokens from `depth` on. Runs of equal keys are sorted by the next tokens
    before the scan goes on; ends [level] is where the run of each level ends, and `low` where the
    scan of the innermost stands.
    """
    step = min(64 // bits, SORTED)
    low, level = 0, 0
    ends[0] = run.size
    _sort_run(text, run, keys, depth, step, bits, above, todo)
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
        elif end - low <= _SHORT or deeper >= SORTED:
            _insertion_sort(
                text, run, low, end, deeper
            ) if end - low <= _SHORT else _sort_positions(run, keys, low, end, todo)
            low = end
        else:
            _sort_run(text, run[low:end], keys[low:end], deeper, step, bits, above, todo)
            level += 1
            ends[level] = end


@compiled
def _sort_run(
    text: NDArray[np.uint32],
    run: NDArray[np.int32],
    keys: NDArray[np.uint64],
    depth: int,
    step: int,
    bits: int,
    above: int,
    todo: NDArray[np.int64],
) -> None:
    """Sort `run` by the `step` tokens from `depth` on; their packed keys are left in `keys`."""
    for index in range(run.size):
        start = np.int64(run[index]) + depth
        key = np.uint64(0)
        for position in range(start, start + step):
            token = np.int64(text[position]) if position < text.size else above
            if token > above:
                token = above
            key = (key << np.uint64(bits)) | np.uint64(token)
        keys[index] = key
    _sort_pairs(keys, run, todo)


@compiled
def _sort_positions(
    run: NDArray[np.int32], keys: NDArray[np.uint64], low: int, high: int, todo: NDArray[np.int64]
) -> None:
    """Sort suffixes that are equal as deep as anyone looks: in text order."""
    for index in range(low, high):
        keys[index] = np.uint64(run[index])
    _sort_pairs(keys[low:high], run[low:high], todo)


@compiled
def _insertion_sort(
    text: NDArray[np.uint32], run: NDArray[np.int32], low: int, high: int, depth: int
) -> None:
    for index in range(low + 1, high):
        moving = run[index]
        place = index
        while place > low and _before(text, moving, run[place - 1], depth):
            run[place] = run[place - 1]
            place -= 1
        run[place] = moving


@compiled
def _before(text: NDArray[np.uint32], left: int, right: int, depth: int) -> bool:
    """Whether the suffix at `left` stands before the one at `right`; they are equal in the first
    `depth` tokens.
    """
    end = min(SORTED, text.size - max(left, right))
    one, other = text.ctypes.data + 4 * left, text.ctypes.data + 4 * right
    while depth + 4 <= end:  # four tokens at a time
        first = load_uint64(one + 4 * depth) ^ load_uint64(other + 4 * depth)
        if first | (load_uint64(one + 4 * depth + 8) ^ load_uint64(other + 4 * depth + 8)):
            break
        depth += 4
    for offset in range(depth, end):
        if text[left + offset] != text[right + offset]:
            return bool(text[left + offset] < text[right + offset])
    return left < right


@compiled
def _insertion_sort_keys(
    keys: NDArray[np.uint64], run: NDArray[np.int32], low: int, high: int
) -> None:
    for index in range(low + 1, high):
        key, moving, place = keys[index], run[index], index
        while place > low and keys[place - 1] > key:
            keys[place], run[place] = keys[place - 1], run[place - 1]
            place -= 1
        keys[place], run[place] = key, moving


@compiled
def _sort_pairs(keys: NDArray[np.uint64], run: NDArray[np.int32], todo: NDArray[np.int64]) -> None:
    """Sort keys and, with them, run, by three-way quicksort; the pivot is drawn, so that no input
    is a bad one.

    todo: [256] room for the parts put off; the larger one is, so 2 log2(n) entries do.
    """
    low, high, depth = 0, keys.size, 0
    noise = np.uint64(0x9E3779B97F4A7C15)
    while True:
        if high - low <= _SHORT:
            _insertion_sort_keys(keys, run, low, high)
            if depth == 0:
                return
            depth -= 2
            low, high = todo[depth], todo[depth + 1]
            continue
        noise ^= noise << np.uint64(13)
        noise ^= noise >> np.uint64(7)
        noise ^= noise << np.uint64(17)
        first = keys[low + np.int64(noise % np.uint64(high - low))]
        second, third = keys[low + (high - low) // 2], keys[high - 1]
        pivot = max(min(first, second), min(max(first, second), third))
        less, index, more = low, low, high
        while index < more:
            key = keys[index]
            if key < pivot:
                keys[index], keys[less] = keys[less], key
                run[index], run[less] = run[less], run[index]
                less += 1
                index += 1
            elif key > pivot:
                more -= 1
                keys[index], keys[more] = keys[more], key
                run[index], run[more] = run[more], run[index]
            else:
                index += 1
        if less - low > high - more:
            todo[depth], todo[depth + 1] = low, less
            low = more
        else:
            todo[depth], todo[depth + 1] = more, high
            high = less
        depth += 2
