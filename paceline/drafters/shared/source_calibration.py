"""Calibrate the acceptance probability of a draft token, given its sources.

Draft tokens are counted in cells. Each cell counts the tried tokens (trials) and the accepted
tokens (hits); its acceptance probability is hits/trials. Each cell starts with prior counts. A
draft token counts as tried once the target has predicted a token after the draft token's parent,
even if the draft token was not verified. All requests of an engine share the cells.

The first two sources are cached distributions and retrieval. A token's cached distribution provides
a context length and a probability, and retrieval provides a confidence. Each context length has a
table. Its columns are ranges of the cached probability, its rows are ranges of retrieval's
confidence, and its cells contain hits/trials. For example:

    retrieval    cached: absent   below .01   .01-.03   ...   above .95
    =========    ==============   =========   =======   ===   =========
    absent       -                1/90        2/110     ...   160/175
    below .01    3/80             ...
    ...

The other sources follow in the order of `SOURCES`. Each of them adjusts the probability p computed
from the earlier sources. For this purpose, each source has a separate table, with one cell for each
combination of p and the source's confidence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.draft_budget.acceptance_calibration import bucket_of, count_trial
from paceline.drafters.shared.draft_sources import WEIGHED
from paceline.drafters.shared.settings import SourceCalibrationSettings, SourcePrior
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.util.compiled import kernel

_SETTINGS = SourceCalibrationSettings()
_EDGES, _MEMORY = _SETTINGS.edges, _SETTINGS.memory  # compiled code reads module constants
_SIDE = 1 + len(_EDGES) + 1  # absent, then the buckets
_PAIRS = 2 * (LONGEST_KEY + 1) * _SIDE * _SIDE  # cells of greedy requests, then of sampled ones
# A table of each weighed source follows, for greedy and for sampled requests.
CELLS = _PAIRS + len(WEIGHED) * 2 * _SIDE * _SIDE


class SourceCalibration(NamedTuple):
    """Counts of tried and accepted draft tokens, for measuring acceptance rates.

    Each cell counts the draft tokens to which the sources assigned similar probabilities.

    Attributes:
        hits: Number of accepted tokens, [CELLS].
        trials: Number of tried tokens, [CELLS].
    """

    hits: NDArray[np.float64]
    trials: NDArray[np.float64]


def new_source_calibration() -> SourceCalibration:
    """Return a calibration in which all cells contain their prior counts.

    For a token from cached distributions and retrieval, the prior acceptance rate is the larger of
    two numbers: the cached probability times a factor (`SourceCalibrationSettings.trust`), and
    retrieval's confidence. The prior of each other source was fitted to recorded outcomes
    (`SourcePrior`).
    """
    edges = np.array((0.002, *_EDGES, 1.0))
    middle = np.concatenate(([0.0], np.sqrt(edges[1:] * edges[:-1])))
    pairs = np.empty((2, LONGEST_KEY + 1, _SIDE, _SIDE))
    for size in range(LONGEST_KEY + 1):
        cached = middle * _SETTINGS.trust[size]
        pairs[:, size] = np.maximum(cached[:, None], middle[None, :])
    probabilities, trials = [pairs.ravel()], [np.full(pairs.size, _SETTINGS.pair_trials)]
    for source in WEIGHED:
        assert source.prior is not None, "every source except retrieval needs a prior"
        cells = np.empty((2, _SIDE, _SIDE))
        cells[:] = _weighed(middle, source.prior)
        probabilities.append(cells.ravel())
        trials.append(np.full(cells.size, source.prior.trials))
    num_trials = np.concatenate(trials)
    return SourceCalibration(num_trials * np.concatenate(probabilities), num_trials)


def _weighed(middle: NDArray[np.float64], prior: SourcePrior) -> NDArray[np.float64]:
    """Return a table of prior acceptance rates, for a source other than retrieval.

    Entry [i, j] is the acceptance rate of a token to which the earlier sources assign the
    probability middle[i], and this source assigns the probability middle[j].

    Args:
        middle: Middle of each range of probabilities. Entry 0 is 0 and stands for a token that a
            source does not propose.
        prior: Prior of this source.
    """
    odds = middle[1:] / (1 - middle[1:])
    result = np.zeros((len(middle), len(middle)))
    factor, before, own = prior.both
    result[1:, 1:] = factor * odds[:, None] ** before * odds[None, :] ** own
    result[1:, 0] = prior.before[0] * odds ** prior.before[1]
    result[0, 1:] = prior.own[0] * odds ** prior.own[1]
    return result / (1 + result)


@kernel
def pair_cell(sampled: bool, size: int, cached: float, drafted: float) -> int:
    """Return the index of a token's cell, for cached distributions and retrieval.

    A cell counts tried and accepted tokens with the same context length, similar cached
    probabilities, and similar confidences of retrieval.

    Args:
        sampled: Whether the request is sampled rather than greedy.
        size: Context length of the cached distribution, in tokens; 0 if the token is not cached.
        cached: Probability of the token in the cached distribution.
        drafted: Retrieval's confidence in the token; negative if retrieval did not propose it.
    """
    column = 0 if size == 0 else 1 + bucket_of(_EDGES, cached)
    row = 0 if drafted < 0 else 1 + bucket_of(_EDGES, drafted)
    return (((1 if sampled else 0) * (LONGEST_KEY + 1) + size) * _SIDE + column) * _SIDE + row


@kernel
def weighed_cell(table: int, sampled: bool, before: float, confidence: float) -> int:
    """Return the index of a draft token's cell, for a source other than retrieval.

    A cell counts tried and accepted tokens for which `before` is similar and `confidence` is
    similar.

    Args:
        table: Index of the source's calibration table.
        sampled: Whether the request is sampled rather than greedy.
        before: Probability of the token according to the earlier sources; 0 if no earlier source
            proposed the token.
        confidence: This source's confidence in the token; negative if this source did not propose
            it.
    """
    column = 0 if before <= 0 else 1 + bucket_of(_EDGES, before)
    row = 0 if confidence < 0 else 1 + bucket_of(_EDGES, confidence)
    return _PAIRS + ((2 * table + (1 if sampled else 0)) * _SIDE + column) * _SIDE + row


@kernel
def acceptance(calibration: SourceCalibration, cell: int) -> float:
    """Return the acceptance rate of the tokens in a cell, including prior counts."""
    rate: float = calibration.hits[cell] / calibration.trials[cell]
    return rate


@kernel
def count_cell(calibration: SourceCalibration, cell: int, accepted: bool) -> None:
    """Count a draft token that was tried, and whether the target accepted it.

    Args:
        calibration: Counts to update.
        cell: Index of the token's cell.
        accepted: Whether the target accepted the token.
    """
    count_trial(calibration.hits, calibration.trials, cell, accepted, _MEMORY)
