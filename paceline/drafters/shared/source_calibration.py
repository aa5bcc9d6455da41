"""Calibrate the acceptance probability of a draft token by its sources.

One table counts trials and hits for all requests of an engine. Two sources may offer a token: the
cached distributions (a context length and a probability) and another drafter's tree (a confidence).
Each pair of their values is a cell that starts from a prior. A token is tried when the target has
predicted a token after its parent, whether the token was processed or not.

                       | cached: absent  below .01   .01-.03  ...  above .95  (per context length)
    drafted: absent    |   -             1/90        2/110        160/175
             below .01 |  3/80          ...
             ...

The draft head is weighed against that probability in further cells: the probability of the cell
above and the head's probability. The draft model is weighed against the result in cells of the same
form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.draft_budget.acceptance_calibration import step_of
from paceline.drafters.shared.settings import SourceCalibrationSettings
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.util.compiled import kernel

_SETTINGS = SourceCalibrationSettings()
_EDGES, _FADING = _SETTINGS.edges, _SETTINGS.fading  # compiled code reads module constants
_SIDE = 1 + len(_EDGES) + 1  # absent, then the buckets
_PAIRS = 2 * (LONGEST_KEY + 1) * _SIDE * _SIDE  # cells of greedy requests, then of sampled ones
# The cells of the draft model follow, then those of the draft head.
CELLS = _PAIRS + 4 * _SIDE * _SIDE


class SourceCalibration(NamedTuple):
    """Count trials and hits per cell.

    Attributes:
        hits: [CELLS] accepted tokens.
        trials: [CELLS] tried tokens.
    """

    hits: NDArray[np.float64]
    trials: NDArray[np.float64]


def new_source_calibration() -> SourceCalibration:
    """Return a table with the prior counts.

    The prior of a pair is the larger of both values. The priors of head and draft model are fits to
    counts.
    """
    hits = np.empty((2, LONGEST_KEY + 1, _SIDE, _SIDE))
    asked = np.empty((2, 2, _SIDE, _SIDE))
    edges = np.array((0.002, *_EDGES, 1.0))
    middle = np.concatenate(([0.0], np.sqrt(edges[1:] * edges[:-1])))
    for size in range(LONGEST_KEY + 1):
        kept = middle * _SETTINGS.trust[size]
        hits[:, size] = np.maximum(kept[:, None], middle[None, :])
    asked[0], asked[1] = (
        _weighed(middle, _SETTINGS.model_both, _SETTINGS.model_before, _SETTINGS.model_own),
        _weighed(middle, _SETTINGS.head_both, _SETTINGS.head_before, _SETTINGS.head_own),
    )
    num_head_cells = asked[1].size
    trials = np.repeat(
        (_SETTINGS.pair_trials, _SETTINGS.head_trials), (CELLS - num_head_cells, num_head_cells)
    )
    return SourceCalibration(trials * np.concatenate((hits.ravel(), asked.ravel())), trials)


def _weighed(
    middle: NDArray[np.float64],
    both: tuple[float, float, float],
    before: tuple[float, float],
    own: tuple[float, float],
) -> NDArray[np.float64]:
    """Return prior probabilities [probability before, own probability].

    Args:
        middle: Middle of each bucket; 0 = absent.
        both: Fit where both values exist.
        before: Fit where only the probability before exists.
        own: Fit where only the own probability exists.
    """
    odds = middle[1:] / (1 - middle[1:])
    found = np.zeros((len(middle), len(middle)))
    found[1:, 1:] = both[0] * odds[:, None] ** both[1] * odds[None, :] ** both[2]
    found[1:, 0] = before[0] * odds ** before[1]
    found[0, 1:] = own[0] * odds ** own[1]
    return found / (1 + found)


@kernel
def cell_of(sampled: bool, size: int, kept: float, drafted: float) -> int:
    """Return the cell of a token of the first two sources.

    Args:
        sampled: Whether the request samples.
        size: Tokens of the context; 0 if the token is not cached.
        kept: Cached probability.
        drafted: Confidence of the other drafter; below 0 if it does not have the token.
    """
    column = 0 if size == 0 else 1 + step_of(_EDGES, kept)
    row = 0 if drafted < 0 else 1 + step_of(_EDGES, drafted)
    return (((1 if sampled else 0) * (LONGEST_KEY + 1) + size) * _SIDE + column) * _SIDE + row


@kernel
def cell_of_asked(from_head: bool, sampled: bool, chance: float, modelled: float) -> int:
    """Return the cell of a token where the draft head or the draft model predicted.

    Args:
        from_head: Whether the draft head predicted; else the draft model.
        sampled: Whether the request samples.
        chance: Probability by the other sources; 0 if none has the token.
        modelled: Confidence of the prediction; below 0 if it does not have the token.
    """
    column = 0 if chance <= 0 else 1 + step_of(_EDGES, chance)
    row = 0 if modelled < 0 else 1 + step_of(_EDGES, modelled)
    return (
        _PAIRS + (((2 if from_head else 0) + (1 if sampled else 0)) * _SIDE + column) * _SIDE + row
    )


@kernel
def count_trial(chances: SourceCalibration, cell: int, accepted: bool) -> None:
    """Count one trial; older counts fade."""
    if chances.trials[cell] >= _FADING:
        chances.trials[cell] *= 0.5
        chances.hits[cell] *= 0.5
    chances.trials[cell] += 1.0
    chances.hits[cell] += 1.0 if accepted else 0.0
