"""What a forward of a model costs on this machine, by the rows it is fed and the text before them: measured once, then kept.

Each number of rows is one token behind a short text and a chain of draft nodes; the least of a few rounds counts, since another
program can only make a forward slower. Between the measured numbers the cost is a line, and beyond them the last line goes on.
A few numbers of rows are measured behind a longer text as well: with every token of it each row has more to attend to.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.common import cache
from paceline.engine.circumstances import circumstances
from paceline.engine.forward_cost import timed_forward
from paceline.engine.model import CachedLM
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.tree import EMPTY_TREE, DraftTree, IntArray

# Products take rows four or sixteen at a time: where a number fills them up, the next one is measured, too. A slow model gets the
# first of these only, which are far apart: what a wide tree costs is not to be guessed from the few rows that come for nothing.
_ORDER = (1, 16, 64, 8, 32, 17, 4, 48, 12, 24, 128, 33, 2, 96, 20, 5, 13, 9, 65, 3, 10, 6)
ROWS = tuple(sorted(_ORDER))
_KIND = "cost-v11"  # another number when what is measured or written changes
_TEXT, _LONG_TEXT = 32, 512  # tokens in front
_ROWS_BEHIND = (1, 8, 16, 32, 64, 128)  # numbers of rows that are measured behind the long text as well
_ROUNDS = 5
# No further number of rows is begun after so many seconds; of a slow model, after so many forwards of one row, up to the second.
_ENOUGH_SECONDS, _MOST_SECONDS, _ENOUGH_FORWARDS = 10.0, 18.0, 40


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Attributes:
    rows: numbers of rows, ascending, the first 1. seconds: of a forward of so many, never falling.
    further: seconds that every token of the text before them adds beyond the measured ones, likewise; empty: none.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    further: tuple[float, ...] = ()

    def of(self, rows: IntArray, context: float = 0.0) -> NDArray[np.float64]:
        """Return the seconds of forwards of `rows` rows each behind `context` tokens."""
        found = self._line(rows, self.seconds)
        if self.further:
            found += max(0.0, context - _TEXT) * self._line(rows, self.further)
        return found

    def _line(self, rows: IntArray, measured: tuple[float, ...]) -> NDArray[np.float64]:
        found = np.interp(rows, self.rows, measured)
        if len(self.rows) > 1:
            slope = (measured[-1] - measured[-2]) / (self.rows[-1] - self.rows[-2])
            found += np.maximum(rows - self.rows[-1], 0) * slope
        return found


def cost_curve(model: CachedLM, most_rows: int | None = None) -> CostCurve:
    """Return the curve of a model; measured where it was not before on this machine, in the same circumstances.

    Args:
        most_rows: a forward may have; None = any number.
    """
    most = min(ROWS[-1], most_rows or ROWS[-1])
    facts = circumstances(
        model.model,
        batch_invariant=model.architecture.by_position,
        rows=[model.least_rows, most],
        products=[len(model.products.modules), model.products.least, model.products.most],
    )
    place = cache.Place(_KIND, facts, f"forward costs of {model.model.__class__.__name__}", "curve.json")
    return cache.remember(place, lambda: measure(model, most), _read)


def measure(model: CachedLM, most: int = ROWS[-1]) -> CostCurve:
    """Measure the curve up to `most` rows, in a cache of its own."""
    apart = model.apart()
    seq = _opened(apart, _TEXT)
    best: dict[int, float] = {}
    begin = time.perf_counter()
    for rows in (rows for rows in _ORDER if rows <= most):
        if len(best) > 1 and time.perf_counter() - begin > _enough(best[1]) / _ROUNDS:
            break
        best[rows] = _timed(apart, seq, rows)
    for rows in [*best] * (_ROUNDS - 1):
        best[rows] = min(best[rows], _timed(apart, seq, rows))
    measured = tuple(sorted(best))
    some = _soon_measured(best) if model.context_length > _LONG_TEXT + ROWS[-1] else []
    added = _added(apart, seq, some) if some else []
    apart.close(seq)
    seconds = np.maximum.accumulate([best[rows] for rows in measured])
    further = np.interp(measured, some, added) if added else np.empty(0)
    return CostCurve(measured, tuple(float(one) for one in seconds), tuple(float(one) for one in further))


def _soon_measured(best: dict[int, float]) -> list[int]:
    """Return the numbers of rows that there is time to measure behind a long text: the least and the most, or none."""
    some = [rows for rows in _ROWS_BEHIND if rows in best]
    while len(some) > 1 and 2 * _ROUNDS * sum(best[rows] for rows in some) >= _MOST_SECONDS - _ENOUGH_SECONDS:
        some = [] if len(some) == 2 else [*some[: len(some) // 2], *some[len(some) // 2 + 1 :]]
    return some


def _added(apart: CachedLM, short: Sequence, some: list[int]) -> list[float]:
    """Return the seconds that a token of text adds to forwards of some numbers of rows, never falling."""
    long = _opened(apart, _LONG_TEXT)
    best = {rows: [np.inf, np.inf] for rows in some}
    for _ in range(_ROUNDS):
        for rows, kept in best.items():
            for place, seq in enumerate((short, long)):  # by turns: both in any weather
                kept[place] = min(kept[place], _timed(apart, seq, rows))
    apart.close(long)
    added = [max(0.0, behind - before) / (_LONG_TEXT - _TEXT) for before, behind in best.values()]
    return [float(one) for one in np.maximum.accumulate(added)]


def _opened(apart: CachedLM, text: int) -> Sequence:
    seq = Sequence(_tokens(apart, text), SamplingParams())
    apart.open(seq)
    while seq.pending:
        apart.feed([seq])
    seq.token_ids += _tokens(apart, 1)
    return seq


def _timed(apart: CachedLM, seq: Sequence, rows: int) -> float:
    return timed_forward(apart, seq, DraftTree.chain(_tokens(apart, rows - 1)) if rows > 1 else EMPTY_TREE)


def _enough(forward: float) -> float:
    return min(_MOST_SECONDS, max(_ENOUGH_SECONDS, _ENOUGH_FORWARDS * forward))


def _read(kept: dict[str, Any]) -> CostCurve:
    return CostCurve(tuple(kept["rows"]), tuple(kept["seconds"]), tuple(kept["further"]))


def _tokens(model: CachedLM, count: int) -> list[int]:
    return [place % min(7, model.vocab_size) for place in range(count)]
