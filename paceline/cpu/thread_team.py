"""Jobs: compiled work that any number of threads may share, and helpers that stay awake for it
during a forward.

A job takes its tasks from a counter among its arguments, until none is left. To wake a thread takes
as long as a product of a few rows; so while a `SpinningThreadTeam` is at hand its helpers look for
the next job all the time, and have it within a microsecond.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.simd_f32x8 import operation, pointer
from paceline.util.compiled import callback, compiled
from paceline.util.machine import on_x86
from paceline.util.threads import share, submit

# bytes in the letter box; what is waited for has a line of its own
_OPEN, _INSIDE, _STOP, _JOB, _PLACE = (0, 64, 128, 192, 200)
_SIZE = 256
_PATIENCE = 1 << 18  # looks in vain, of 10 to 40 ns, before a helper gives up
_INDEX = ir.IntType(64)
_under_way = threading.local()


def _call(builder: Any, job: Any, place: Any) -> Any:
    kind = ir.FunctionType(_INDEX, [_INDEX])
    return builder.call(builder.inttoptr(job, kind.as_pointer()), [place])


def _load(builder: Any, address: Any) -> Any:
    return builder.load_atomic(pointer(builder, address, _INDEX), "seq_cst", 8)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store_atomic(value, pointer(builder, address, _INDEX), "seq_cst", 8)


def _add(builder: Any, address: Any, amount: Any) -> Any:
    return builder.atomic_rmw("add", pointer(builder, address, _INDEX), amount, "seq_cst")


def _pause(builder: Any) -> None:
    """Leave the core to its other thread for a moment."""
    if on_x86():
        called = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
        )
        builder.call(called, [])


call = operation(types.int64, (types.int64,) * 2, _call)  # a job's address, that of its arguments
load_shared = operation(types.int64, (types.int64,), _load)
store_shared = operation(types.void, (types.int64,) * 2, _store)
add_shared = operation(types.int64, (types.int64,) * 2, _add)
pause = operation(types.void, (), _pause)


class TeamJob:
    """A function of compiled code that does tasks until none is left: (address of its arguments) ->
    how many it did.

    It makes no reference to Python's objects, and any number of threads may be in it.
    """

    def __init__(self, work: Callable[[int], int]) -> None:
        self._work = work

    @cached_property
    def _compiled(self) -> Any:
        return callback(self._work)

    @cached_property
    def address(self) -> int:
        """Of the compiled function."""
        return int(self._compiled.address)

    def prepare(self) -> None:
        """Compile it now, where it has not been: no request waits for it then."""
        _ = self.address

    def share(self, place: int, helpers: int, small: bool = False) -> None:
        """Do all tasks, here and in other threads.

        Args:
            place: of the record that the job reads, its counter of tasks included.
            helpers: threads to wake, where no crew is at hand.
            small: not worth the help of a crew either.
        """
        crew: SpinningThreadTeam | None = getattr(_under_way, "crew", None)
        if crew is not None and not small:
            crew.lead(self.address, place)
        elif helpers:
            share(_do, (self.address, place), helpers)
        else:
            _do(self.address, place)


class Arguments(threading.local):
    """Room for the arguments of a job, each thread's own.

    Args:
        record: dtype of the record that the job reads; all its fields are int64 or float64.
    """

    def __init__(self, record: np.dtype[np.void]) -> None:
        kinds = {np.dtype(np.int64): "q", np.dtype(np.float64): "d"}
        self._layout = struct.Struct(
            "".join(kinds[record[number]] for number in range(len(record.names or ())))
        )
        self._room = ctypes.create_string_buffer(self._layout.size)
        self._place = ctypes.addressof(self._room)

    def write(self, *values: float) -> int:
        """Write them, the fields in their order, and return where they lie until the next call
        in this thread.
        """
        self._layout.pack_into(self._room, 0, *values)
        return self._place


class SpinningThreadTeam:
    """Threads that wait awake for jobs of the thread that made it."""

    def __init__(self, helpers: int) -> None:
        self._room = np.zeros(_SIZE // 8 + 8, dtype=np.int64)
        self._box = (self._room.ctypes.data + 63) // 64 * 64
        self._jobs = 0
        for _ in range(helpers):
            submit(self._help)

    def lead(self, job: int, place: int) -> None:
        """Do all tasks of a job, with whoever is awake."""
        self._jobs += 1
        _lead(self._box, self._jobs, job, place)

    def dismiss(self) -> None:
        """Let the helpers go."""
        _dismiss(self._box)

    def _help(self) -> int:
        return _help(self._box)  # holds `self`, and with it the letter box


@contextmanager
def awake(helpers: int) -> Iterator[None]:
    """Have a crew for the jobs of this thread inside."""
    if not helpers:
        yield
        return
    crew = _under_way.crew = SpinningThreadTeam(helpers)
    try:
        yield
    finally:
        _under_way.crew = None
        crew.dismiss()


@compiled
def _do(job: int, place: int) -> int:
    done: int = call(job, place)
    return done


@compiled
def _lead(box: int, number: int, job: int, place: int) -> int:
    store_shared(box + _JOB, job)
    store_shared(box + _PLACE, place)
    store_shared(box + _OPEN, number)
    done: int = call(job, place)
    store_shared(box + _OPEN, 0)
    while load_shared(box + _INSIDE):  # nobody enters any more
        pause()
    return done


@compiled
def _dismiss(box: int) -> None:
    store_shared(box + _STOP, 1)


@compiled
def _help(box: int) -> int:
    """Do tasks of every job, until there are no more; returns how many."""
    seen, idle, done = 0, 0, 0
    while idle < _PATIENCE:
        number = load_shared(box + _OPEN)
        if number in (0, seen):
            if load_shared(box + _STOP):
                break
            idle += 1
            pause()
            continue
        add_shared(box + _INSIDE, 1)
        if load_shared(box + _OPEN) == number:  # the leader waits from here on
            done += call(load_shared(box + _JOB), load_shared(box + _PLACE))
        add_shared(box + _INSIDE, -1)
        seen, idle = number, 0
    return done
