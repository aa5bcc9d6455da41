"""Describe measured costs of forward passes, and their conditions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paceline.util.plurals import counted

if TYPE_CHECKING:
    from paceline.llm import LLM
    from paceline.util.stopwatch import Conditions

_COST_CURVE = "PACELINE_COST_CURVE"
_ROWS = (4, 8, 16, 32, 64)  # row counts that are always named


def describe_costs(llm: LLM) -> str:
    """Describe the stored cost curve for the process's threads, and its measurement."""
    assert llm.costs is not None, "no ranks"
    if llm.costs.given:
        return f"given by ${_COST_CURVE}"
    import torch

    threads = f"with {counted(torch.get_num_threads(), 'thread')}"
    stored = llm.costs.recall()
    if stored is None:
        return f"not measured {threads}; run with --measure, or it is measured when drafting starts"
    seconds = dict(zip(stored.curve.rows, stored.curve.seconds, strict=True))
    times = ", ".join(
        f"{rows} {seconds[rows] / seconds[1]:.2f}x" if rows in seconds else f"{rows} not measured"
        for rows in sorted({*_ROWS, stored.curve.rows[-1]} - {1})
    )
    conditions = describe_conditions(stored.conditions)
    return f"{threads}, 1 row {seconds[1] * 1e3:.3g} ms, {times}; {conditions}"


def describe_conditions(timed: Conditions) -> str:
    """Describe a measurement: its age, its spread and the load of the machine."""
    hours = max(0.0, time.time() - timed.made) / 3600
    count, unit = (
        (round(hours * 60), "minute")
        if hours < 2
        else (round(hours), "hour")
        if hours < 48
        else (round(hours / 24), "day")
    )
    waited = (
        "" if timed.waited is None else f", {timed.waited:.0%} of the time waiting for a processor"
    )
    load = "" if timed.load is None else f", load {timed.load:.1f}"
    state = "quiet" if timed.quiet else "disturbed; will be measured again on an idle machine"
    age = counted(count, unit)
    return f"measured {age} ago, quartiles {timed.spread:.1%} apart{waited}{load}: {state}"
