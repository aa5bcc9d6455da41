"""Run jobs that a table lists, from compiled code."""

from __future__ import annotations

from paceline.cpu.thread_team import TEAM, lead, store_shared
from paceline.cpu.thread_team import call as call_function
from paceline.util.compiled import compiled, inlined, load_int64

_JOB_BYTES = 16  # of a table entry: addresses of the function and its record, int64


def reserve_jobs(count: int) -> tuple[int, int]:
    """Return this thread's mailbox, and the number before `count` new jobs.

    Without a team, both are 0.
    """
    team = TEAM.of_this_thread()
    return (0, 0) if team is None else (team.mailbox, team.take_numbers(count))


@inlined
def run_job(jobs: int, job: int, taken: int, mailbox: int, number: int) -> None:
    """Run all tasks of a job, shared with the thread team if there is one.

    Args:
        jobs: Address of the table.
        job: Index of the job in the table.
        taken: Offset of the counter of tasks in the job's record.
        mailbox: Address at which the thread team receives its jobs; 0 means no team.
        number: Number of the last job that the team received before this one.
    """
    function = load_int64(jobs + job * _JOB_BYTES)
    record = load_int64(jobs + job * _JOB_BYTES + _JOB_BYTES // 2)
    store_shared(record + taken, 0)
    if mailbox:
        lead(mailbox, number + 1, function, record)
    else:
        call_function(function, record)


@compiled
def run_jobs(jobs: int, count: int, taken: int, mailbox: int, number: int) -> None:
    """Run the first `count` jobs of a table, one after the other; see `run_job`."""
    for job in range(count):
        run_job(jobs, job, taken, mailbox, number + job)
