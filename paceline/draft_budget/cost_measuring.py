"""Measure the cost curve, and check an existing curve with a few forward passes.

The cost curve lists the duration of a forward pass for each row count. For a row count of n, the
forward pass processes one token and a chain of n - 1 draft nodes, after a short text. Some row
counts are also timed after a longer text, where each row attends to more positions.

The timer cycles through the row counts, so that other programs affect all row counts equally. For
each row count, only the shortest time is used, because other programs can only slow a forward pass
down.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.timed_target import TimedTarget
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.draft_budget.cost_curve import CostCurve, MeasuredCurve
from paceline.draft_budget.settings import (
    DEFAULTS,
    LONG_TEXT,
    SHORT_TEXT,
    TOKEN_STRIDE,
    DraftBudgetSettings,
)
from paceline.invariance.forward_cost import run_forward
from paceline.util.stopwatch import Conditions, Stopwatch, agree, spread_of
from paceline.util.timing_settings import TIMING

ROWS = tuple(sorted(DEFAULTS.measured_rows))

# Seconds, keyed by text index and number of rows.
_Repeats = dict[tuple[int, int], list[float]]


@dataclass(frozen=True, slots=True)
class Check:
    """Result of comparing a curve with a few forward passes.

    Attributes:
        off: Largest relative difference between the curve and the new times. The comparison covers
            only the shape of the curve: each set of times is first divided by its time for the
            smallest row count.
        quiet: Whether the forward passes ran without noticeable load from other programs.
    """

    off: float
    quiet: bool

    @property
    def confirms(self) -> bool:
        """True if the curve agrees closely enough with the measured forward passes."""
        return self.off <= TIMING.max_cost_error


class _Timer:
    """Times one model's forward passes in a dedicated cache."""

    def __init__(self, model: TimedTarget) -> None:
        self.model = model.apart()
        self._texts = [self._open(SHORT_TEXT)]
        self.stopwatch = Stopwatch.suited(
            self.model.device, lambda: run_forward(self.model, self._texts[0], EMPTY_TREE)
        )

    def time(self, rows: int, text: int = 0) -> float:
        """Return the duration of one forward pass, in seconds.

        Args:
            rows: Number of rows.
            text: 0 for the short text, 1 for the long text.
        """
        return _timed(self.stopwatch, self.model, self._texts[text], rows)

    def repeat(self, repeats: _Repeats, end: float) -> None:
        """Repeat forward passes until the two shortest times of each row count agree.

        Args:
            repeats: Durations measured so far, in seconds; this call appends to them.
            end: Time, from `time.perf_counter`, after which no new round starts.
        """
        for _ in range(TIMING.max_rounds):
            for (text, rows), seconds in repeats.items():
                if not agree(seconds):
                    seconds.append(self.time(rows, text))
            if min(map(len, repeats.values())) >= TIMING.min_rounds and time.perf_counter() > end:
                break

    def open_long_text(self) -> None:
        """Process a text of LONG_TEXT tokens, so that passes after it can be timed."""
        self._texts.append(self._open(LONG_TEXT))

    def close_text(self) -> None:
        """Free the cache slot of the text that was opened last."""
        self.model.close(self._texts.pop())

    def _open(self, length: int) -> Request:
        request = Request(_tokens(self.model, length), SamplingParams())
        self.model.open(request)
        while request.pending:
            self.model.feed([request])
        request.token_ids += _tokens(self.model, 1)
        return request


def measure(
    model: TimedTarget,
    max_rows: int | None = None,
    max_seconds: float | None = None,
    known: CostCurve | None = None,
    settings: DraftBudgetSettings = DEFAULTS,
) -> MeasuredCurve:
    """Measure the cost curve in a separate cache.

    Args:
        model: The model to time.
        max_rows: Maximum row count. By default, all row counts in the settings are timed.
        max_seconds: Number of seconds after which no further row count is timed. The default comes
            from the settings.
        known: Existing curve, from which the cost of longer texts is copied. If None, the cost of
            longer texts is also measured, which takes several additional seconds.
        settings: Row counts and limits for the measurement.
    """
    limit = settings.max_measure_seconds if max_seconds is None else max_seconds
    begin, timer = time.perf_counter(), _Timer(model)
    repeats: _Repeats = {}
    for rows in settings.measured_rows:
        if max_rows is not None and rows > max_rows:
            continue
        enough = _enough(repeats[0, 1][0], limit, settings) if repeats else limit
        if len(repeats) > 1 and time.perf_counter() - begin > enough / settings.planned_rounds:
            break
        repeats[0, rows] = [timer.time(rows)]
    timer.repeat(repeats, begin + enough)
    best = {rows: min(seconds) for (_, rows), seconds in repeats.items()}
    # The first repeat of each is a warm-up, because its buffers are new.
    spreads = [spread_of(repeats[0, rows][1:]) for rows in sorted(best)]
    measured = tuple(sorted(best))
    if known is not None:
        long_rows, added = list(known.rows), list(known.further)
    else:
        has_room = model.context_length > LONG_TEXT + max(settings.measured_rows)
        long_rows = _affordable_rows(best, settings) if has_room else []
        added = _added(timer, long_rows, settings) if long_rows else []
    timer.close_text()
    ascending = np.maximum.accumulate([best[rows] for rows in measured])
    further = np.interp(measured, long_rows, added) if added else np.empty(0)
    curve = CostCurve(measured, tuple(map(float, ascending)), tuple(map(float, further)))
    return MeasuredCurve(curve, tuple(spreads), Conditions.of(spreads, timer.stopwatch))


def check(model: TimedTarget, curve: CostCurve) -> Check | None:
    """Compare a curve with a few forward passes, and return the result.

    The result is None if the forward passes would take too long.
    """
    rows = check_rows(curve)
    if not rows:
        return None
    expected = curve.of(np.array(rows))
    timer = _Timer(model)
    repeats: dict[int, list[float]] = {count: [] for count in rows}
    for _ in range(TIMING.check_rounds):
        for count in rows:
            repeats[count].append(timer.time(count))
    timer.close_text()
    best = np.array([min(repeats[count]) for count in rows])
    off = np.abs(best / best[0] / (expected / expected[0]) - 1).max()
    spread = median(spread_of(repeats[count][1:]) for count in rows)
    quiet = spread <= TIMING.quiet_spread and (timer.stopwatch.waited or 0.0) <= TIMING.quiet_wait
    return Check(float(off), quiet)


def check_seconds(curve: CostCurve) -> float:
    """Return the expected duration of a check, in seconds."""
    rows = check_rows(curve)
    if not rows:
        return 0.0
    return float(TIMING.check_rounds * curve.of(np.array(rows)).sum() + _text_seconds(curve))


def measuring_seconds(curve: CostCurve, limit: float) -> float:
    """Return the expected duration of a measurement limited to `limit` seconds."""
    return min(limit, TIMING.min_rounds * sum(curve.seconds)) + _text_seconds(curve)


def _text_seconds(curve: CostCurve) -> float:
    """Return the expected duration of the passes that prepare the first timing."""
    return float(curve.of(np.array([SHORT_TEXT]))[0] + TIMING.min_rounds * curve.seconds[0])


def check_rows(curve: CostCurve) -> list[int]:
    """Return the row counts to check; empty if the check would take too long."""
    rows = [rows for rows in TIMING.check_rows if rows <= curve.rows[-1]]
    expected = curve.of(np.array(rows))
    while (
        len(rows) > 1 and TIMING.check_rounds * expected[: len(rows)].sum() > TIMING.check_seconds
    ):
        rows.pop()
    return rows if len(rows) > 1 else []


def _affordable_rows(best: dict[int, float], settings: DraftBudgetSettings) -> list[int]:
    """Return the row counts to time with a long text, within the time limit.

    If the limit is too short for all row counts in the settings, row counts in the middle of the
    list are dropped. The result is either empty or has at least two entries.

    Args:
        best: Shortest measured time in seconds, by row count.
        settings: Row counts and time limits.
    """
    result = [rows for rows in sorted(settings.measured_rows_long) if rows in best]
    limit = settings.max_measure_seconds - settings.measure_seconds
    while (
        len(result) > 1
        and 2 * settings.planned_rounds * sum(best[rows] for rows in result) >= limit
    ):
        middle = len(result) // 2
        result = [] if len(result) == 2 else [*result[:middle], *result[middle + 1 :]]
    return result


def _added(timer: _Timer, long_rows: list[int], settings: DraftBudgetSettings) -> list[float]:
    """Return the seconds that each token of the text adds to a forward pass.

    The result has one value per row count in `long_rows`. The values never decrease.
    """
    timer.open_long_text()
    repeats: _Repeats = {(text, rows): [] for rows in long_rows for text in (0, 1)}
    limit = settings.max_measure_seconds - settings.measure_seconds
    timer.repeat(repeats, time.perf_counter() + limit)
    timer.close_text()
    added = [
        max(0.0, min(repeats[1, rows]) - min(repeats[0, rows])) / (LONG_TEXT - SHORT_TEXT)
        for rows in long_rows
    ]
    return [float(seconds) for seconds in np.maximum.accumulate(added)]


def _timed(stopwatch: Stopwatch, model: TimedTarget, request: Request, rows: int) -> float:
    tree = DraftTree.chain(_tokens(model, rows - 1)) if rows > 1 else EMPTY_TREE
    return stopwatch.seconds(lambda: run_forward(model, request, tree))


def _enough(forward_s: float, limit: float, settings: DraftBudgetSettings) -> float:
    return min(limit, max(settings.measure_seconds, settings.measure_forwards * forward_s))


def _tokens(model: TimedTarget, count: int) -> list[int]:
    """Return distinct tokens, so that the model routes them to different experts."""
    return [index * TOKEN_STRIDE % model.vocab_size for index in range(count)]
