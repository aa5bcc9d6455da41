"""Divide the tasks of compiled kernels among threads.

Every thread that runs a `TeamJob` claims tasks through an atomic counter until no tasks are left,
so any number of threads may run the job together. Waking a sleeping thread takes as long as
multiplying a few rows by a weight matrix. During a forward pass, `TEAM` therefore keeps helper
threads spinning. A spinning thread starts the next job within a microsecond.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.emit import operation, pointer
from paceline.cpu.settings import MAX_SPINS, SPINS_PER_YIELD
from paceline.util.compiled import callback, compiled, inlined
from paceline.util.machine import on_x86
from paceline.util.threads import follow_forks, share, submit

# Layout of a team's mailbox, as byte offsets. Each word that a thread polls has its own cache line.
_LINE = 64
_OPEN, _INSIDE, _STOP, _JOB = (_LINE * number for number in range(4))
_ARGUMENTS = _JOB + 8
_MAILBOX_SIZE = 4 * _LINE
_INDEX = ir.IntType(64)


def _call(builder: Any, job: Any, arguments: Any) -> Any:
    kind = ir.FunctionType(_INDEX, [_INDEX])
    return builder.call(builder.inttoptr(job, kind.as_pointer()), [arguments])


def _load(builder: Any, address: Any) -> Any:
    return builder.load_atomic(pointer(builder, address, _INDEX), "seq_cst", 8)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store_atomic(value, pointer(builder, address, _INDEX), "seq_cst", 8)


def _add(builder: Any, address: Any, amount: Any) -> Any:
    return builder.atomic_rmw("add", pointer(builder, address, _INDEX), amount, "seq_cst")


def _pause(builder: Any) -> None:
    """Emit x86's `pause` instruction, which frees the core for its other hyper-thread."""
    if on_x86():
        called = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
        )
        builder.call(called, [])


def _yield_core(builder: Any) -> None:
    """Emit a system call that yields this core to another runnable thread."""
    name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
    kind = ir.FunctionType(ir.IntType(32), [])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])


call = operation(types.int64, (types.int64,) * 2, _call)  # arguments: job and record addresses
load_shared = operation(types.int64, (types.int64,), _load)
store_shared = operation(types.void, (types.int64,) * 2, _store)
add_shared = operation(types.int64, (types.int64,) * 2, _add)
pause = operation(types.void, (), _pause)
yield_core = operation(types.void, (), _yield_core)


class TeamJob:
    """Runs a compiled function in several threads at once.

    Args:
        work: Compiled function whose argument is the address of a record with the job's arguments.
            The function runs tasks until the record's counter shows that no tasks are left, and
            returns how many it ran. The function must not use Python objects.
        record: Dtype of the record that `run` fills, with int64 or float64 fields. If None
            (default), callers must pass their own record to `share`.
    """

    def __init__(self, work: Callable[[int], int], record: np.dtype[np.void] | None = None) -> None:
        self._work = work
        self._layout = struct.Struct("" if record is None else _struct_format(record))
        # A call removes a record and puts it back afterwards, so two calls never share a record.
        self._free_records: list[tuple[Any, int]] = []

    @cached_property
    def _compiled(self) -> Any:
        return callback(self._work)

    @cached_property
    def address(self) -> int:
        """Address of the compiled function."""
        return int(self._compiled.address)

    def prepare(self) -> None:
        """Compile the job in advance, so that no request has to wait for the compiler."""
        _ = self.address

    def run(self, values: tuple[float, ...], helpers: int, small: bool = False) -> None:
        """Run all tasks of the job in this thread and in helper threads.

        Args:
            values: Values for the fields of the argument record, in order.
            helpers: Number of sleeping threads to wake if no helpers are spinning for this thread.
            small: Whether the work is too short to share with spinning helpers. Default: False.
        """
        try:
            record = self._free_records.pop()
        except IndexError:
            buffer = ctypes.create_string_buffer(self._layout.size)
            record = buffer, ctypes.addressof(buffer)
        self._layout.pack_into(record[0], 0, *values)
        self.share(record[1], helpers, small)
        self._free_records.append(record)

    def share(self, arguments: int, helpers: int, small: bool = False) -> None:
        """Run all tasks of the job like `run`, but read a record that the caller owns.

        Args:
            arguments: Address of the argument record.
            helpers: Number of sleeping threads to wake if no helpers are spinning for this thread.
            small: Whether the work is too short to share with spinning helpers. Default: False.
        """
        team = None if small else TEAM.of_this_thread()
        if team is not None:
            team.run(self.address, arguments)
        elif helpers:
            share(_do, (self.address, arguments), helpers)
        else:
            _do(self.address, arguments)


def _struct_format(record: np.dtype[np.void]) -> str:
    codes = {np.dtype(np.int64): "q", np.dtype(np.float64): "d"}
    return "".join(codes[record[number]] for number in range(len(record.names or ())))


class SpinningThreadTeam:
    """Helper threads that spin while waiting for jobs from one leading thread.

    Args:
        helpers: Number of helper threads to take from the process's pool.
    Attributes:
        mailbox: Address at which `lead` posts jobs.
    """

    def __init__(self, helpers: int) -> None:
        self._memory = np.zeros((_MAILBOX_SIZE + _LINE) // 8, dtype=np.int64)
        self.mailbox = (self._memory.ctypes.data + _LINE - 1) // _LINE * _LINE
        self._num_jobs = 0
        for _ in range(helpers):
            submit(self._help)

    def run(self, job: int, arguments: int) -> None:
        """Run all tasks of a job, together with the helpers that are awake.

        Args:
            job: Address of the compiled function.
            arguments: Address of the job's argument record.
        """
        lead(self.mailbox, self.take_numbers(1) + 1, job, arguments)

    def take_numbers(self, count: int) -> int:
        """Reserve `count` consecutive job numbers; return the number before the first."""
        self._num_jobs += count
        return self._num_jobs - count

    def stop(self) -> None:
        """Release the helper threads, so that they return to the process's thread pool."""
        _stop(self.mailbox)

    def _help(self) -> int:
        return _help(self.mailbox)  # the bound method keeps the mailbox alive


class _Lease(NamedTuple):
    """A running team, and the identifier of the thread that leads the team."""

    thread: int
    team: SpinningThreadTeam


class ThreadTeam:
    """Provides spinning helper threads to one forward pass at a time.

    A second forward pass that starts in the meantime runs without helpers. It never waits for the
    first, so the two cannot deadlock. A forked child process starts without helpers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lease: _Lease | None = None
        follow_forks(self)

    @contextmanager
    def running(self, helpers: int) -> Iterator[None]:
        """Keep helpers spinning for this thread's jobs during the `with` block.

        Args:
            helpers: Number of helper threads. With 0, the calling thread runs its jobs alone.
        """
        lock = self._lock
        if not lock.acquire(blocking=False):
            yield
            return
        try:
            team = SpinningThreadTeam(helpers)
            lease = self._lease = _Lease(threading.get_ident(), team)
            try:
                yield
            finally:
                if self._lease is lease:  # not after a fork inside the block
                    self._lease = None
                team.stop()
        finally:
            lock.release()

    def of_this_thread(self) -> SpinningThreadTeam | None:
        """Return the team that the calling thread leads, or None."""
        lease = self._lease
        return lease.team if lease and lease.thread == threading.get_ident() else None

    def become_child(self) -> None:
        """Discard the parent process's team after a fork."""
        self._lock = threading.Lock()
        self._lease = None


TEAM = ThreadTeam()  # the team of this process: all forward passes share one pool of threads


@compiled
def _do(job: int, arguments: int) -> int:
    num_done: int = call(job, arguments)
    return num_done


@inlined
def _wait(num_spins: int) -> None:
    """Wait a few nanoseconds before the next poll, and yield the core now and then.

    The other thread, for which this one waits, may need the same core. Without the yield, the other
    thread would run only after the current time slice, which lasts milliseconds.
    """
    if num_spins % SPINS_PER_YIELD:
        pause()
    else:
        yield_core()


@compiled
def lead(mailbox: int, number: int, job: int, arguments: int) -> int:
    """Post a job to the helpers, run its tasks, and wait until all helpers are done."""
    store_shared(mailbox + _JOB, job)
    store_shared(mailbox + _ARGUMENTS, arguments)
    store_shared(mailbox + _OPEN, number)
    num_done: int = call(job, arguments)
    store_shared(mailbox + _OPEN, 0)
    num_spins = 0
    while load_shared(mailbox + _INSIDE):  # the job is closed: no more helpers enter
        num_spins += 1
        _wait(num_spins)
    return num_done


@compiled
def _stop(mailbox: int) -> None:
    store_shared(mailbox + _STOP, 1)


@compiled
def _help(mailbox: int) -> int:
    """Help with jobs until the team stops, or `MAX_SPINS` polls in a row find no job."""
    last_number, num_spins, num_done = 0, 0, 0
    while num_spins < MAX_SPINS:
        number = load_shared(mailbox + _OPEN)
        if number in (0, last_number):
            if load_shared(mailbox + _STOP):
                break
            num_spins += 1
            _wait(num_spins)
            continue
        add_shared(mailbox + _INSIDE, 1)
        # The job may have closed meanwhile. If it is still open, the leader waits for this helper.
        if load_shared(mailbox + _OPEN) == number:
            num_done += call(load_shared(mailbox + _JOB), load_shared(mailbox + _ARGUMENTS))
        add_shared(mailbox + _INSIDE, -1)
        last_number, num_spins = number, 0
    return num_done
