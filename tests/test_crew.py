"""Jobs and the helpers that stay awake for them: every task is done once, by whoever is there,
and nobody stays behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from paceline.cpu.linear.own import product
from paceline.cpu.thread_team import (
    SpinningThreadTeam,
    TeamJob,
    add_shared,
    awake,
    load_shared,
    pause,
)
from paceline.util import threads
from paceline.util.compiled import take_number

TASKS = 500


def _count_up(place: int) -> int:
    """Add one to each of the numbers behind the counter."""
    done = 0
    task = take_number(place)
    while task < TASKS:
        add_shared(place + 8 + 8 * task, 1)
        done += 1
        task = take_number(place)
    return done


count_up = TeamJob(_count_up)


def _meet(place: int) -> int:
    """Wait about a second for another thread to come."""
    add_shared(place, 1)
    patience = 0
    while load_shared(place) < 2 and patience < 50_000_000:
        pause()
        patience += 1
    return 1


meet = TeamJob(_meet)


def watched(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set when a helper has left."""
    ended = threading.Event()

    def watch(work: Callable[[], int]) -> None:
        work()
        ended.set()

    monkeypatch.setattr("paceline.cpu.thread_team.submit", lambda work: threads.submit(watch, work))
    return ended


@pytest.mark.parametrize(("woken", "waiting"), [(0, 0), (2, 0), (0, 1), (2, 3)])
def test_each_task_is_done_once(woken: int, waiting: int) -> None:
    with awake(waiting):
        for _ in range(300):
            numbers = np.zeros(TASKS + 1, dtype=np.int64)
            count_up.share(numbers.ctypes.data, woken)
            assert (numbers[1:] == 1).all()


def test_helpers_take_part_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that the system does not let run soon enough gives up; then another crew is
    tried.
    """
    ended = watched(monkeypatch)
    come = np.zeros(1, dtype=np.int64)
    for _ in range(30):
        come[0] = 0
        crew = SpinningThreadTeam(1)
        crew.lead(meet.address, come.ctypes.data)
        crew.dismiss()
        assert ended.wait(30)
        ended.clear()
        if come[0] == 2:
            break
    assert come[0] == 2


def test_a_helper_that_is_forgotten_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = watched(monkeypatch)
    SpinningThreadTeam(1)
    assert ended.wait(30)


def test_work_that_fails_lets_the_helpers_go() -> None:
    with pytest.raises(RuntimeError, match="in the middle"), awake(1):
        raise RuntimeError("in the middle")
    with awake(1):
        time.sleep(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_the_same_with_a_crew(dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(0)
    rows, weight = (
        torch.randn(5, 96, generator=noise).to(dtype),
        torch.randn(400, 96, generator=noise).to(dtype),
    )
    alone = product(rows, weight, None)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with awake(2):
            assert all(torch.equal(product(rows, weight, None), alone) for _ in range(200))
    finally:
        torch.set_num_threads(before)
