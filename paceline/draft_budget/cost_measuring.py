"""Measuring a cost curve, and checking one by a few forwards.

Each number of rows is one token behind a short text and a chain of draft nodes. A few are measured
behind a longer text as well, where each row has more to attend to. All take turns, so that what
disturbs the machine disturbs all alike. The shortest of their repeats counts, since another program
can only make a forward slower.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.draft_budget.cost_curve import LONG_TEXT, SHORT_TEXT, CostCurve, MeasuredCurve
from paceline.invariance.forward_cost import run_forward
from paceline.model.cached_lm import CachedLM
from paceline.util.stopwatch import Conditions, Stopwatch, agree, spread_of
from paceline.util.timing_settings import TIMING

# Products take rows four or sixteen at a time: where a number fills them up, the next one is
# measured, too. A slow model gets the first of these only, which are far apart: what a wide tree
# costs cannot be guessed from the few rows that cost nothing.
_ORDER = (1, 16, 64, 8, 32, 17, 4, 48, 12, 24, 128, 33, 2, 96, 20, 5, 13, 9, 65, 3, 10, 6)
ROWS = tuple(sorted(_ORDER))
# numbers of rows that are measured behind the long text as well
_ROWS_BEHIND = (1, 8, 16, 32, 64, 128)
_ROUNDS = 5  # for which there should be time
# No further number of rows is begun after so many seconds; of a slow model, after so many forwards
# of one row, up to the second.
_ENOUGH_SECONDS, _MOST_SECONDS, _ENOUGH_FORWARDS = 10.0, 18.0, 40

# seconds by the place of the text and the number of rows
_Repeats = dict[tuple[int, int], list[float]]


@dataclass(frozen=True, slots=True)
class Check:
    """What a few forwards say about a curve.

    Attributes:
        off: relative difference between the cost of rows then and now, the largest.
        quiet: nothing disturbed these forwards noticeably.
    """

    off: float
    quiet: bool

    @property
    def confirms(self) -> bool:
        """Whether the curve is close enough to these forwards."""
        return self.off <= TIMING.max_cost_error


def measure(
    model: CachedLM,
    most: int = ROWS[-1],
    seconds: float = _MOST_SECONDS,
    known: CostCurve | None = None,
) -> MeasuredCurve:
    """Measure the curve in a separate cache.

    Args:
        model: The model to time.
        most: Maximum number of rows.
        seconds: Time after which the measurement begins no further number of rows.
        known: Curve that already has the cost of longer texts; None = measure it as well, which
            takes several seconds more.
    """
    apart, begin = model.apart(), time.perf_counter()
    short = _opened(apart, SHORT_TEXT)
    stopwatch = _suited(apart, short)
    repeats: _Repeats = {}
    for rows in (rows for rows in _ORDER if rows <= most):
        enough = _enough(repeats[0, 1][0], seconds) if repeats else seconds
        if len(repeats) > 1 and time.perf_counter() - begin > enough / _ROUNDS:
            break
        repeats[0, rows] = [_timed(stopwatch, apart, short, rows)]
    _repeat(repeats, stopwatch, apart, [short], begin + enough)
    best = {rows: min(each) for (_, rows), each in repeats.items()}
    # the first of each warms up: its buffers are new
    spreads = [spread_of(repeats[0, rows][1:]) for rows in sorted(best)]
    measured = tuple(sorted(best))
    if known is not None:
        some, added = list(known.rows), list(known.further)
    else:
        some = _soon_measured(best) if model.context_length > LONG_TEXT + ROWS[-1] else []
        added = _added(stopwatch, apart, short, some) if some else []
    apart.close(short)
    ascending = np.maximum.accumulate([best[rows] for rows in measured])
    further = np.interp(measured, some, added) if added else np.empty(0)
    curve = CostCurve(measured, tuple(map(float, ascending)), tuple(map(float, further)))
    return MeasuredCurve(curve, tuple(spreads), Conditions.of(spreads, stopwatch))


def check(model: CachedLM, curve: CostCurve) -> Check | None:
    """Compare a curve with a few forwards; None where these would take long."""
    rows = [rows for rows in TIMING.check_rows if rows <= curve.rows[-1]]
    expected = curve.of(np.array(rows))
    while (
        len(rows) > 1 and TIMING.check_rounds * expected[: len(rows)].sum() > TIMING.check_seconds
    ):
        rows.pop()
    if len(rows) < 2:
        return None
    apart = model.apart()
    request = _opened(apart, SHORT_TEXT)
    stopwatch = _suited(apart, request)
    repeats: _Repeats = {(0, one): [] for one in rows}
    for _ in range(TIMING.check_rounds):
        for one in rows:
            repeats[0, one].append(_timed(stopwatch, apart, request, one))
    apart.close(request)
    best = np.array([min(repeats[0, one]) for one in rows])
    off = np.abs(best / best[0] / (expected[: len(rows)] / expected[0]) - 1).max()
    spread = median(spread_of(repeats[0, one][1:]) for one in rows)
    quiet = spread <= TIMING.quiet_spread and (stopwatch.waited or 0.0) <= TIMING.quiet_wait
    return Check(float(off), quiet)


def _repeat(
    repeats: _Repeats, stopwatch: Stopwatch, apart: CachedLM, texts: list[Request], end: float
) -> None:
    """Repeat forwards by turns until the shortest ones of each agree, or there is no time left."""
    for _ in range(TIMING.max_rounds):
        for (text, rows), each in repeats.items():
            if not agree(each):
                each.append(_timed(stopwatch, apart, texts[text], rows))
        if min(map(len, repeats.values())) >= TIMING.min_rounds and time.perf_counter() > end:
            break


def _soon_measured(best: dict[int, float]) -> list[int]:
    """Return the numbers of rows that there is time to measure behind a long text: the least and
    the most, or none.
    """
    some = [rows for rows in _ROWS_BEHIND if rows in best]
    while (
        len(some) > 1
        and 2 * _ROUNDS * sum(best[rows] for rows in some) >= _MOST_SECONDS - _ENOUGH_SECONDS
    ):
        some = [] if len(some) == 2 else [*some[: len(some) // 2], *some[len(some) // 2 + 1 :]]
    return some


def _added(stopwatch: Stopwatch, apart: CachedLM, short: Request, some: list[int]) -> list[float]:
    """Return the seconds that a token of text adds to forwards of some numbers of rows, never
    falling.
    """
    long = _opened(apart, LONG_TEXT)
    repeats: _Repeats = {(text, rows): [] for rows in some for text in (0, 1)}
    _repeat(
        repeats,
        stopwatch,
        apart,
        [short, long],
        time.perf_counter() + _MOST_SECONDS - _ENOUGH_SECONDS,
    )
    apart.close(long)
    added = [
        max(0.0, min(repeats[1, rows]) - min(repeats[0, rows])) / (LONG_TEXT - SHORT_TEXT)
        for rows in some
    ]
    return [float(one) for one in np.maximum.accumulate(added)]


def _opened(apart: CachedLM, text: int) -> Request:
    request = Request(_tokens(apart, text), SamplingParams())
    apart.open(request)
    while request.pending:
        apart.feed([request])
    request.token_ids += _tokens(apart, 1)
    return request


def _suited(apart: CachedLM, request: Request) -> Stopwatch:
    return Stopwatch.suited(apart.device, lambda: run_forward(apart, request, EMPTY_TREE))


def _timed(stopwatch: Stopwatch, apart: CachedLM, request: Request, rows: int) -> float:
    tree = DraftTree.chain(_tokens(apart, rows - 1)) if rows > 1 else EMPTY_TREE
    return stopwatch.seconds(lambda: run_forward(apart, request, tree))


def _enough(forward: float, seconds: float) -> float:
    return min(seconds, max(_ENOUGH_SECONDS, _ENOUGH_FORWARDS * forward))


def _tokens(model: CachedLM, count: int) -> list[int]:
    return [place % min(7, model.vocab_size) for place in range(count)]
