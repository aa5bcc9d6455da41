"""Check that a thread team does every task once, and that its helpers leave."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from paceline.cpu.backend import CPU
from paceline.cpu.linear.dispatch import product
from paceline.cpu.thread_team import (
    TEAM,
    SpinningThreadTeam,
    TeamJob,
    ThreadTeam,
    add_shared,
    load_shared,
    pause,
)
from paceline.util import threads
from paceline.util.compiled import take_number

TASKS = 500


def _count_up(address: int) -> int:
    """Add one to each of the numbers after the counter."""
    done = 0
    task = take_number(address)
    while task < TASKS:
        add_shared(address + 8 + 8 * task, 1)
        done += 1
        task = take_number(address)
    return done


count_up = TeamJob(_count_up)


def _meet(address: int) -> int:
    """Wait about a second for another thread."""
    add_shared(address, 1)
    patience = 0
    while load_shared(address) < 2 and patience < 50_000_000:
        pause()
        patience += 1
    return 1


meet = TeamJob(_meet)


def watched(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a helper has left."""
    ended = threading.Event()

    def watch(work: Callable[[], int]) -> None:
        work()
        ended.set()

    monkeypatch.setattr("paceline.cpu.thread_team.submit", lambda work: threads.submit(watch, work))
    return ended


@pytest.mark.parametrize(("woken", "waiting"), [(0, 0), (2, 0), (0, 1), (2, 3)])
def test_each_task_is_done_once(woken: int, waiting: int) -> None:
    with CPU.thread_team(waiting or None):
        for _ in range(300):
            numbers = np.zeros(TASKS + 1, dtype=np.int64)
            count_up.share(numbers.ctypes.data, woken)
            assert (numbers[1:] == 1).all()


def test_a_team_without_helpers_wakes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("submit", "share"):
        monkeypatch.setattr(f"paceline.cpu.thread_team.{name}", None)
    with CPU.thread_team(0):
        numbers = np.zeros(TASKS + 1, dtype=np.int64)
        count_up.share(numbers.ctypes.data, 2)
    assert (numbers[1:] == 1).all()


def test_helpers_take_part_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again with another team if the helper started too late."""
    ended = watched(monkeypatch)
    arrived = np.zeros(1, dtype=np.int64)
    for _ in range(30):
        arrived[0] = 0
        team = SpinningThreadTeam(1)
        team.run(meet.address, arrived.ctypes.data)
        team.stop()
        assert ended.wait(30)
        ended.clear()
        if arrived[0] == 2:
            break
    assert arrived[0] == 2


def test_a_forgotten_helper_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = watched(monkeypatch)
    SpinningThreadTeam(1)
    assert ended.wait(30)


def test_an_error_inside_stops_the_helpers() -> None:
    with pytest.raises(RuntimeError, match="in the middle"), TEAM.running(1):
        raise RuntimeError("in the middle")
    with TEAM.running(1):
        time.sleep(0)


def count_up_once() -> bool:
    """Run a job of `TASKS` tasks and return whether each was done exactly once."""
    numbers = np.zeros(TASKS + 1, dtype=np.int64)
    count_up.share(numbers.ctypes.data, 0)
    return bool((numbers[1:] == 1).all())


def test_concurrent_threads_neither_share_a_team_nor_wait() -> None:
    """Four threads run jobs at once; at any time, at most one of them leads the team."""
    start, results = threading.Barrier(4), list[bool]()

    def forward() -> None:
        start.wait()
        for _ in range(50):
            with TEAM.running(1):
                results.append(all(count_up_once() for _ in range(5)))

    workers = [threading.Thread(target=forward) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert results == [True] * 200
    assert TEAM.of_this_thread() is None


def test_only_the_thread_that_started_the_team_leads_it() -> None:
    inside = list[SpinningThreadTeam | None]()
    with TEAM.running(1):
        team = TEAM.of_this_thread()
        with TEAM.running(2):  # a forward inside a forward uses the team that runs
            assert TEAM.of_this_thread() is team is not None
        other = threading.Thread(target=lambda: inside.append(TEAM.of_this_thread()))
        other.start()
        other.join()
    assert inside == [None]
    assert TEAM.of_this_thread() is None


def test_a_forked_child_has_no_team_and_may_start_one() -> None:
    team = ThreadTeam()
    with team.running(1):
        team.become_child()
        assert team.of_this_thread() is None
        with team.running(1):
            assert team.of_this_thread() is not None
    with team.running(1):
        assert team.of_this_thread() is not None


def test_calls_at_the_same_time_never_share_a_record() -> None:
    record = np.dtype([("taken", np.int64), ("first", np.int64), ("second", np.float64)])
    job = TeamJob(_count_up, record)
    job.run((TASKS, 7, 0.5), 0)
    buffer, address = job._free_records[0]
    assert (ctypes.addressof(buffer), len(job._free_records)) == (address, 1)
    assert np.frombuffer(buffer, record).tolist() == [(TASKS + 1, 7, 0.5)]
    job.run((TASKS, 8, 0.5), 0)
    assert len(job._free_records) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_the_same_with_a_thread_team(dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(0)
    rows, weight = (
        torch.randn(5, 96, generator=noise).to(dtype),
        torch.randn(400, 96, generator=noise).to(dtype),
    )
    alone = product(rows, weight, None)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with TEAM.running(2):
            assert all(torch.equal(product(rows, weight, None), alone) for _ in range(200))
    finally:
        torch.set_num_threads(before)
