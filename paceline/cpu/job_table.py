"""Run a table of jobs from compiled code, without returning to Python in between."""

from __future__ import annotations

from paceline.cpu.thread_team import TEAM, lead, store_shared
from paceline.cpu.thread_team import call as call_function
from paceline.util.compiled import compiled, inlined, load_int64

_JOB_BYTES = 16  # bytes in a table entry: int64 addresses of the function and of its record


def reserve_jobs(count: int) -> tuple[int, int]:
    """Reserve job numbers in the thread team that this thread leads.

    Args:
        count: Number of jobs to run.
    Returns:
        The address of the team's mailbox, and the number of the job before the first reserved one.
        Both are 0 if this thread leads no team.
    """
    team = TEAM.of_this_thread()
    return (0, 0) if team is None else (team.mailbox, team.take_numbers(count))


@inlined
def run_job(jobs: int, job: int, taken: int, mailbox: int, number: int) -> None:
    """Run all tasks of a job, and share them with the thread team if there is one.

    Args:
        jobs: Address of the table of jobs.
        job: Index of the job in the table.
        taken: Offset of the task counter in the job's record, in bytes.
        mailbox: Address at which the thread team receives its jobs. 0 means no team.
        number: Number of the job that the team received before this one.
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
    """Run the first `count` jobs in a table, one after the other.

    Args:
        jobs: Address of the table of jobs.
        count: Number of jobs to run.
        taken: Offset of the task counter in each job's record, in bytes.
        mailbox: Address that `reserve_jobs` returned; 0 if this thread leads no team.
        number: Job number that `reserve_jobs` returned. The first job has the next number.
    """
    for job in range(count):
        run_job(jobs, job, taken, mailbox, number + job)
