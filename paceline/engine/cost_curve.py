"""What a forward of a model costs on this machine, by the rows it is fed: measured once, kept in the cache.

Each number of rows is one token behind a short text and a chain of draft nodes; the least of a few rounds counts, since another
program can only make a forward slower. Between the measured numbers the cost is a line, and beyond them the last line goes on.
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

# Products take rows four or sixteen at a time: where a number fills them up, the next one is measured, too.
ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 16, 17, 20, 24, 32, 33, 48, 64, 65, 96, 128)
_KIND = "cost-v8"  # another number when what is measured or written changes
_TEXT = 32  # tokens in front
_ROUNDS = 5
# No larger number of rows is begun after so many seconds; of a slow model, after so many forwards of one row, up to the second.
_ENOUGH_SECONDS, _MOST_SECONDS, _ENOUGH_FORWARDS = 10.0, 18.0, 40


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Attributes:
    rows: numbers of rows, ascending, the first 1. seconds: of a forward of so many, never falling.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def of(self, rows: IntArray) -> NDArray[np.float64]:
        """Return the seconds of forwards of `rows` rows each."""
        found = np.interp(rows, self.rows, self.seconds)
        if len(self.rows) > 1:
            slope = (self.seconds[-1] - self.seconds[-2]) / (self.rows[-1] - self.rows[-2])
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
    seq = Sequence(_tokens(model, _TEXT), SamplingParams())
    apart.open(seq)
    apart.feed([seq])
    seq.token_ids += _tokens(model, 1)
    best: dict[int, float] = {}
    begin = time.perf_counter()
    for turn in range(_ROUNDS):
        for rows in ROWS if turn == 0 else tuple(best):
            slow = len(best) > 1 and time.perf_counter() - begin > _enough(best[1]) / _ROUNDS
            if turn == 0 and (slow or rows > most):
                break
            tree = DraftTree.chain(_tokens(model, rows - 1)) if rows > 1 else EMPTY_TREE
            best[rows] = min(best.get(rows, np.inf), timed_forward(apart, seq, tree))
    apart.close(seq)
    seconds = np.maximum.accumulate([best[rows] for rows in best])
    return CostCurve(tuple(best), tuple(float(one) for one in seconds))


def _enough(forward: float) -> float:
    return min(_MOST_SECONDS, max(_ENOUGH_SECONDS, _ENOUGH_FORWARDS * forward))


def _read(kept: dict[str, Any]) -> CostCurve:
    return CostCurve(tuple(kept["rows"]), tuple(kept["seconds"]))


def _tokens(model: CachedLM, count: int) -> list[int]:
    return [place % min(7, model.vocab_size) for place in range(count)]
