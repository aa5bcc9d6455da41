"""Attention by position by Intel's matrix instructions (AMX): sixteen queries in little more than the time of one.

A query's output depends on itself and on the keys it sees, to the last bit, as in `kernel`; the order of sums is another one:

- score of a query and a key: as `paceline.common.amx` multiplies them, 32 dims after the other; then the scaling;
- the largest score of all keys the query sees, and every score's exponential of its difference to that;
- their sum: lane l of sixteen sums those of the keys of rank l, l + 16, ... (rank 0 is the query's first key, by position);
  lanes l and l + 8 are added, l and l + 4, l and l + 2, 0 and 1; an attention sink's exponential comes last;
- every exponential as the sum of two numbers in bfloat16, which is as exact as 16 bits are;
- output of each dim: 32 ranks after the other, as `amx` multiplies them, the first numbers of a step, then the second ones; then
  the division.

The steps whose 32 keys all queries of a block see at the same ranks, those of the text before them, are multiplied for all at
once. For each column the others, with the nodes of its own path, are gathered by rank: no query is multiplied by a key that it
does not see, which may be no number. These tiles have as many rows as a key head has query heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from paceline.common import amx, halves, lanes, weighted
from paceline.common.compiled import Records, as_pointer, inlined, store_uint8, take_number
from paceline.common.crew import Job
from paceline.engine.attention.call import CALL, TAKEN, Call
from paceline.engine.attention.order import RUN, Run
from paceline.engine.attention.tiles import BFLOAT16, FLOAT, LANES, address, aligned, cap
from paceline.engine.tree import IntArray

INNER, SIDE = 32, amx.SIDE  # dims of a query, and of a value, are multiples of these
_STEP = 2 * SIDE  # keys of a product
_SECTION = 8  # steps whose values are laid out together, which the nearest cache holds
_BYTES = halves.STEP  # of a step in a row of scores; of its weights, the first numbers in bfloat16, then the second
_HALF = FLOAT // 2
_CONFIGURATION = np.frombuffer(amx.configuration(), dtype=np.float32)  # 64 bytes
_ROWS_AT = 48 + 6  # where it says how many rows the tiles have that one column's products are made in

_clear0, _clear1 = amx.zero(0), amx.zero(1)
_load0, _load1, _load2, _load3, _load4, _load5, _load6, _load7 = (amx.load(tile) for tile in range(8))
_store0, _store1, _store2, _store3, _store6 = (amx.store(tile) for tile in (0, 1, 2, 3, 6))
_score0, _score1 = amx.add_product(0, 2, 5), amx.add_product(1, 3, 5)
_add0, _add1, _add2, _add3 = (amx.add_product(tile, 4, 5) for tile in range(4))
_add_own = amx.add_product(6, 7, 5)


def takes(kind: int, dim: int, value_dim: int) -> bool:
    """Whether attention over numbers of a kind (see `tiles`), with so many dims, is made so."""
    return kind == BFLOAT16 and dim % INNER == 0 and value_dim % SIDE == 0 and amx.available()


@inlined
def lanes_of(groups: int) -> int:
    """Return the most queries of a block: those of whole columns, or some of one."""
    return SIDE // groups * groups if groups <= SIDE else SIDE


class _Room(NamedTuple):
    """Addresses of a thread's room, and how much of it a row of scores has.

    Attributes:
        scores: of each block [16 queries, keys], float32; in the place of each step its weights later.
        sums: of each block [16 queries, value dims], float32. totals: of each block [16].
        queries: of a block, transposed: [dims / 2, 16], words of two numbers; copied: as they lie, [16, dims].
        keys: [32, dims], where they do not lie side by side. zeros: a row of values. made: scores of a step, [32 keys, 16].
        values: of a section, words of two keys: [16 * steps, value dims]; gathered: of a step.
        width: bytes of a row of scores.
    """

    scores: int
    sums: int
    totals: int
    queries: int
    copied: int
    keys: int
    zeros: int
    values: int
    gathered: int
    made: int
    width: int


class _Part(NamedTuple):
    """The queries of a row and a key head that a thread takes at a time.

    Attributes:
        first, length: of its queries; query i is of column i // groups, member i % groups. outputs: number of the row's first.
        query, key, value: where those of the row, and of the key head, begin.
        base: the first key that the first column sees.
        straight: so many first keys of the row lie where their ordinal says, those of a prompt too; tail: where the others lie.
    """

    head: int
    first: int
    length: int
    outputs: int
    query: int
    key: int
    value: int
    base: int
    runs: Records[Run]
    begin: IntArray
    straight: int
    tail: IntArray


def _attend(place: int) -> int:
    """Do parts of the `Call` that lies at a place until none is left; returns how many this thread did."""
    call = numba.carray(as_pointer(place), 1, CALL)[0]
    runs = numba.carray(as_pointer(call.runs), call.run_count, RUN)
    starts = numba.carray(as_pointer(call.starts), call.rows + 1, np.int64)
    begin = numba.carray(as_pointer(call.begin), starts[call.rows] + 1, np.int64)
    cached = numba.carray(as_pointer(call.cached), call.rows, np.int64)
    tail = numba.carray(as_pointer(call.tail), (call.rows, call.tail_places), np.int64)
    tiles = (call.columns * call.groups + call.tile - 1) // call.tile
    blocks = call.tile // lanes_of(call.groups) if call.groups <= SIDE else call.tile // call.groups * _cuts(call.groups)
    steps = np.empty(blocks, dtype=np.int64)  # of each block, that are multiplied for all its queries at once
    store = np.empty(_sizes(call, blocks), dtype=np.float32)
    configuration = np.empty(16, dtype=np.float32)
    configuration[:] = _CONFIGURATION
    for tile in range(2):
        store_uint8(address(configuration) + _ROWS_AT + tile, np.uint8(min(call.groups, SIDE)))
    amx.configure(address(configuration))
    done = 0
    while True:
        task = take_number(place + TAKEN)
        if task >= call.rows * call.key_heads * tiles:
            break
        row, head, first = task // tiles // call.key_heads, task // tiles % call.key_heads, task % tiles * call.tile
        done += 1
        length = min(call.tile, (starts[row + 1] - starts[row]) * call.groups - first)
        if length <= 0:  # other rows have more columns
            continue
        seen = begin[starts[row] : starts[row + 1] + 1]
        column, straight = first // call.groups, _straight(cached[row], tail[row])
        part = _Part(
            head,
            first,
            length,
            starts[row],
            call.query + (starts[row] * call.query_column if call.packed else row * call.query_row),
            call.key + row * call.key_row + head * call.key_head,
            call.value + row * call.value_row + head * call.value_head,
            runs[seen[column]].start if seen[column] < seen[column + 1] else 0,
            runs,
            seen,
            straight,
            tail[row, straight - cached[row] :],
        )
        _attend_part(call, part, _lay(call, blocks, aligned(store)), steps)
    amx.release()
    return done


attend_tiled = Job(_attend)


@inlined
def _straight(cached: int, tail: IntArray) -> int:
    """Return how many first keys of a row lie one behind the other."""
    more = 0
    while more < len(tail) and tail[more] == cached + more:
        more += 1
    return int(cached + more)


@inlined
def _cuts(groups: int) -> int:
    """Blocks of a column."""
    return (groups + SIDE - 1) // SIDE


@inlined
def _width(call: Call) -> int:
    """Bytes of a row of scores: whole steps, and a line: rows that lie a power of two apart would share a place in the cache."""
    return (call.keys + _STEP - 1) // _STEP * _BYTES + amx.ROW


@inlined
def _sizes(call: Call, blocks: int) -> int:
    """Numbers of float32 that `_lay` gives away, and a line more."""
    each = SIDE * (_width(call) // FLOAT + call.value_dim + 1)
    rows = SIDE * call.dim + _STEP * call.dim // 2 + call.value_dim
    return int(blocks * each + rows + (_SECTION + 1) * SIDE * call.value_dim + (2 * amx.TILE + amx.ROW) // FLOAT)


@inlined
def _lay(call: Call, blocks: int, place: int) -> _Room:
    width = _width(call)
    scores = place
    sums = scores + blocks * SIDE * width
    totals = sums + blocks * SIDE * call.value_dim * FLOAT
    queries = totals + blocks * amx.ROW
    copied = queries + SIDE * call.dim * _HALF
    keys = copied + SIDE * call.dim * _HALF
    values = keys + _STEP * call.dim * _HALF
    gathered = values + _SECTION * SIDE * call.value_dim * FLOAT
    made = gathered + SIDE * call.value_dim * FLOAT
    zeros = made + 2 * amx.TILE
    return _Room(scores, sums, totals, queries, copied, keys, zeros, values, gathered, made, width)


@inlined
def _clear(place: int, size: int) -> None:
    """Write zeros; size: in bytes, a multiple of 32."""
    for at in range(place, place + size, LANES):
        lanes.store(at, lanes.splat(np.float32(0.0)))


@inlined
def _copy(source: int, target: int, size: int) -> None:
    for at in range(0, size, LANES):
        lanes.store(target + at, lanes.load(source + at))


@inlined
def _attend_part(call: Call, part: _Part, room: _Room, steps: IntArray) -> None:
    _clear(room.zeros, call.value_dim * _HALF)
    most, block, i = 0, 0, 0
    while i < part.length:
        count = _count(call, part, i)
        steps[block] = _weigh_block(call, part, room, block, i, count)
        most = max(most, steps[block])
        i += count
        block += 1
    for first in range(0, most, _SECTION):
        last = min(first + _SECTION, most)
        for pair in range(first * SIDE, last * SIDE):
            key = part.base + 2 * pair
            sources = _value(call, part, key), _value(call, part, key + 1)
            _pair_up(call, sources, room.values + (pair - first * SIDE) * call.value_dim * FLOAT)
        for other in range(block):
            _add_steps(call, room, other, first, min(last, steps[other]))
    block, i = 0, 0
    while i < part.length:
        count = _count(call, part, i)
        _add_own_steps(call, part, room, block, i, count, steps[block])
        _write_out(call, part, room, block, i, count)
        i += count
        block += 1


@inlined
def _count(call: Call, part: _Part, i: int) -> int:
    """Return how many queries the block has that begins with query i."""
    most = lanes_of(call.groups)
    if call.groups > SIDE:
        most = min(most, call.groups - (part.first + i) % call.groups)
    return int(min(most, part.length - i))


@inlined
def _place(part: _Part, ordinal: int) -> int:
    return ordinal if ordinal < part.straight else part.tail[ordinal - part.straight]


@inlined
def _value(call: Call, part: _Part, ordinal: int) -> int:
    return int(part.value + _place(part, ordinal) * call.value_place)


@inlined
def _pair_up(call: Call, sources: tuple[int, int], target: int) -> None:
    for d in range(0, call.value_dim * _HALF, SIDE * _HALF):
        halves.pair_up(sources[0] + d, sources[1] + d, target + 2 * d)


@inlined
def _weigh_block(call: Call, part: _Part, room: _Room, block: int, i: int, count: int) -> int:
    """Scores and then weights of a block; returns its steps that are multiplied for all its queries at once."""
    size, totals = SIDE * call.value_dim * FLOAT, room.totals + block * amx.ROW
    _clear(room.sums + block * size, size)
    for lane in range(count):
        lanes.store_float(totals + lane * FLOAT, np.float32(1.0))  # of a query that sees nothing
    low, high, shared = _seen(call, part, i, count)
    if low >= high:
        return 0
    scores = room.scores + block * SIDE * room.width
    _lay_queries(call, part, room, i, count)
    for start in range(low, high, _STEP):
        _score(call, part, room, scores + (start - low) * FLOAT, start, min(start + _STEP, high))
    for lane in range(count):
        row = scores + lane * room.width
        weighted.scale(row, row, (high - low + SIDE - 1) // SIDE, np.float32(call.scaling))
        if call.softcap:
            cap(np.float32(call.softcap), row, row + (high - low + lanes.WIDTH - 1) // lanes.WIDTH * LANES)
        column, member = divmod(part.first + i + lane, call.groups)
        steps = _arrange(part, row, column, low, shared)
        if steps:
            lanes.store_float(totals + lane * FLOAT, _weigh(call, row, steps, part.head * call.groups + member))
    return shared // _STEP


@inlined
def _seen(call: Call, part: _Part, i: int, count: int) -> tuple[int, int, int]:
    """Return the first key that any query of a block sees, the one behind the last, and how many first keys all of them see: 0
    where these are not the part's first ones."""
    low, high, shared = call.keys, 0, call.keys
    for column in range((part.first + i) // call.groups, (part.first + i + count - 1) // call.groups + 1):
        begin, end = part.begin[column], part.begin[column + 1]
        if begin == end:
            shared = 0
            continue
        first = part.runs[begin]
        low, high = min(low, first.start), max(high, part.runs[end - 1].stop)
        shared = min(shared, first.stop - first.start) if first.start == part.base else 0
    return low, high, shared


@inlined
def _lay_queries(call: Call, part: _Part, room: _Room, i: int, count: int) -> None:
    """Write the queries as words of two dims, a query a column; zeros in the place of those that fill up the sixteen."""
    size = call.dim * _HALF
    for lane in range(count):
        column, member = divmod(part.first + i + lane, call.groups)
        source = part.query + (part.head * call.groups + member) * call.query_head + column * call.query_column
        _copy(source, room.copied + lane * size, size)
    _clear(room.copied + count * size, (SIDE - count) * size)
    for d in range(0, size, amx.ROW):
        amx.transpose(room.copied + d, size, room.queries + d * SIDE, amx.ROW)


@inlined
def _score(call: Call, part: _Part, room: _Room, scores: int, start: int, stop: int) -> None:
    """Products of all queries and up to 32 keys, zeros in the place of more."""
    size, source, stride = call.dim * _HALF, part.key + start * call.key_place, call.key_place
    if stop > part.straight or stop - start < _STEP:
        source, stride = room.keys, size
        for ordinal in range(start, stop):
            _copy(part.key + _place(part, ordinal) * call.key_place, room.keys + (ordinal - start) * size, size)
        _clear(room.keys + (stop - start) * size, (start + _STEP - stop) * size)
    _clear0(), _clear1()
    for d in range(0, size, amx.ROW):
        _load5(room.queries + d * SIDE, amx.ROW)
        _load2(source + d, stride)
        _score0()
        _load3(source + SIDE * stride + d, stride)
        _score1()
    _store0(room.made, amx.ROW)
    _store1(room.made + amx.TILE, amx.ROW)
    amx.transpose(room.made, amx.ROW, scores, room.width)
    amx.transpose(room.made + amx.TILE, amx.ROW, scores + amx.ROW, room.width)


@inlined
def _arrange(part: _Part, row: int, column: int, low: int, shared: int) -> int:
    """Let the scores of a query lie by rank, and minus infinity behind them to the end of a step; returns its steps."""
    rank = 0
    for number in range(part.begin[column], part.begin[column + 1]):
        run = part.runs[number]
        rank = run.rank + run.stop - run.start
        for ordinal in range(run.start + max(0, shared - run.rank), run.stop):
            score = lanes.load_float(row + (ordinal - low) * FLOAT)
            lanes.store_float(row + (run.rank + ordinal - run.start) * FLOAT, score)
    steps = (rank + _STEP - 1) // _STEP
    for missing in range(rank, steps * _STEP):
        lanes.store_float(row + missing * FLOAT, np.float32(-np.inf))
    return steps


@inlined
def _weigh(call: Call, row: int, steps: int, head: int) -> Any:
    """Turn the scores of a query into weights in their place; returns their total, float32."""
    largest = weighted.find_largest(row, 2 * steps)
    sink = np.float32(-np.inf)
    if call.sinks:
        sink = lanes.load_float(call.sinks + head * FLOAT)
        largest = max(largest, sink)
    total = halves.weigh(row, steps, np.float32(largest))
    return np.float32(total + lanes.largest(lanes.exp(lanes.splat(np.float32(sink - largest)))))


@inlined
def _add_steps(call: Call, room: _Room, block: int, first: int, last: int) -> None:
    """Add the values of some steps of the section that is laid out to the sums of a block; `first` is the section's first."""
    weights = room.scores + block * SIDE * room.width + first * _BYTES
    sums, size = room.sums + block * SIDE * call.value_dim * FLOAT, call.value_dim * FLOAT
    whole = size // (4 * amx.ROW) * 4 * amx.ROW
    for d in range(0, whole, 4 * amx.ROW):
        _add_four(weights, room.width, room.values + d, size, sums + d, last - first)
    for d in range(whole, size, amx.ROW):
        _add_one(weights, room.width, room.values + d, size, sums + d, last - first)


@inlined
def _add_four(weights: int, width: int, values: int, size: int, sums: int, count: int) -> None:
    """Add the products of `count` steps to 64 dims of the sums of all queries."""
    _load0(sums, size)
    _load1(sums + amx.ROW, size)
    _load2(sums + 2 * amx.ROW, size)
    _load3(sums + 3 * amx.ROW, size)
    for step in range(count):
        for part in range(0, _BYTES, amx.ROW):
            source = values + step * SIDE * size
            _load4(weights + step * _BYTES + part, width)
            _load5(source, size)
            _add0()
            _load5(source + amx.ROW, size)
            _add1()
            _load5(source + 2 * amx.ROW, size)
            _add2()
            _load5(source + 3 * amx.ROW, size)
            _add3()
    _store0(sums, size)
    _store1(sums + amx.ROW, size)
    _store2(sums + 2 * amx.ROW, size)
    _store3(sums + 3 * amx.ROW, size)


@inlined
def _add_one(weights: int, width: int, values: int, size: int, sums: int, count: int) -> None:
    """The same for 16 dims."""
    _load0(sums, size)
    for step in range(count):
        _load5(values + step * SIDE * size, size)
        for part in range(0, _BYTES, amx.ROW):
            _load4(weights + step * _BYTES + part, width)
            _add0()
    _store0(sums, size)


@inlined
def _add_own_steps(call: Call, part: _Part, room: _Room, block: int, i: int, count: int, first: int) -> None:
    """Add what is left for each column from step `first` on: its own keys, by rank."""
    size = call.value_dim * FLOAT
    lane = 0
    while lane < count:
        column = (part.first + i + lane) // call.groups
        begin, end = part.begin[column], part.begin[column + 1]
        keys = part.runs[end - 1].rank + part.runs[end - 1].stop - part.runs[end - 1].start if begin < end else 0
        weights = room.scores + (block * SIDE + lane) * room.width
        sums = room.sums + (block * SIDE + lane) * size
        for step in range(first, (keys + _STEP - 1) // _STEP):
            begin = _gather(call, part, room, begin, step * _STEP, min((step + 1) * _STEP, keys))
            for d in range(0, size, amx.ROW):
                _load6(sums + d, size)
                _load5(room.gathered + d, size)
                for half in range(0, _BYTES, amx.ROW):
                    _load7(weights + step * _BYTES + half, room.width)
                    _add_own()
                _store6(sums + d, size)
        lane += min(call.groups, SIDE)


@inlined
def _gather(call: Call, part: _Part, room: _Room, run: int, rank: int, stop: int) -> int:
    """Lay the values of the keys of ranks rank .. stop - 1 out as words of two; returns the run that the last one lies in.

    Args:
        run: that the first one lies in, or one before it.
    """
    for pair in range(SIDE):
        first, second = room.zeros, room.zeros
        if rank < stop:
            while part.runs[run].rank + part.runs[run].stop - part.runs[run].start <= rank:
                run += 1
            first = _value(call, part, part.runs[run].start + rank - part.runs[run].rank)
        if rank + 1 < stop:
            while part.runs[run].rank + part.runs[run].stop - part.runs[run].start <= rank + 1:
                run += 1
            second = _value(call, part, part.runs[run].start + rank + 1 - part.runs[run].rank)
        _pair_up(call, (first, second), room.gathered + pair * call.value_dim * FLOAT)
        rank += 2
    return run


@inlined
def _write_out(call: Call, part: _Part, room: _Room, block: int, i: int, count: int) -> None:
    """Divide the sums by the totals of the weights."""
    size = call.value_dim * FLOAT
    for lane in range(count):
        column, member = divmod(part.first + i + lane, call.groups)
        place = (part.outputs + column) * call.key_heads * call.groups + part.head * call.groups + member
        total = lanes.load_float(room.totals + block * amx.ROW + lane * FLOAT)
        sums = room.sums + (block * SIDE + lane) * size
        for d in range(0, size, LANES):
            lanes.store_bfloat16(call.out + (place * size + d) // 2, lanes.divide(lanes.load(sums + d), lanes.splat(total)))
