"""How often a guess comes true, by what speaks for it: counted while decoding, one table for all requests of an engine.

Two sources may offer a token: the kept distributions (a key of so many tokens, a probability) and the tree of another drafter (a
confidence). Each pair of what they say is a cell that counts trials and hits, from a prior on; a guess is tried when the target
has spoken at its parent, whether it was fed or not.

                       | kept: absent   below .01   .01-.03  ...  above .95     of keys of 1, 2, 3, 4 tokens
    drafted: absent    |   -             1/90        2/110        160/175
             below .01 |  3/80          ...
             ...

Where a draft model has been asked what follows, what it says is weighed against that chance, in further cells: the chance by the
cell above, and its confidence. What was foreseen from the target's state has cells of the same form: its probabilities are worth
less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.common.compiled import kernel
from paceline.common.limits import LONGEST_KEY
from paceline.engine.reliability import step_of

_EDGES = (0.01, 0.03, 0.07, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)  # between the steps of a probability or a confidence
_SIDE = 1 + len(_EDGES) + 1  # absent, then the steps
_PAIRS = 2 * (LONGEST_KEY + 1) * _SIDE * _SIDE  # greedy requests, then sampled ones
CELLS = _PAIRS + 4 * _SIDE * _SIDE  # and then those of guesses a draft model was asked about, and of places that were foreseen
_PRIOR_TRIALS = 4.0
_TRUST = (0.0, 0.6, 0.75, 0.85, 0.9)  # in the probability kept under a key of so many tokens, before anything was counted
_OF_BOTH, _OF_MODEL, _AGAINST_MODEL = 0.3, 0.9, 0.3  # what the others' chance, and a draft model's confidence, is worth at first
# What is foreseen is worth so much besides the others' chance, of which so much is left where it is not, counted on 50 prompts.
_OF_FORESEEN, _NOT_FORESEEN = 0.35, 0.8
_FADING = 2000.0  # trials of a cell that are remembered


class Chances(NamedTuple):
    """Attributes: hits, trials: [CELLS]."""

    hits: NDArray[np.float64]
    trials: NDArray[np.float64]


def new_chances() -> Chances:
    """Return a table of the prior: the larger of what both sources say."""
    hits = np.empty((2, LONGEST_KEY + 1, _SIDE, _SIDE))
    asked = np.empty((2, 2, _SIDE, _SIDE))
    edges = np.array((0.002, *_EDGES, 1.0))
    middle = np.concatenate(([0.0], np.sqrt(edges[1:] * edges[:-1])))
    for size in range(LONGEST_KEY + 1):
        kept = middle * _TRUST[size]
        hits[:, size] = np.maximum(kept[:, None], middle[None, :])
    asked[0] = _OF_BOTH * middle[:, None] + (1 - _OF_BOTH) * middle[None, :]
    asked[0, :, 0] = _OF_MODEL * middle
    asked[0, :, :, 0] = _AGAINST_MODEL * middle
    asked[1] = 1 - (1 - middle[:, None]) * (1 - _OF_FORESEEN * middle[None, :])
    asked[1, :, :, 0] = _NOT_FORESEEN * middle
    return Chances(_PRIOR_TRIALS * np.concatenate((hits.ravel(), asked.ravel())), np.full(CELLS, _PRIOR_TRIALS))


@kernel
def cell_of(sampled: bool, size: int, kept: float, drafted: float) -> int:
    """Return the cell of a guess.

    Args:
        size: tokens of the key; 0 = not kept. kept: its probability there.
        drafted: confidence; below 0 = not drafted.
    """
    column = 0 if size == 0 else 1 + step_of(_EDGES, kept)
    row = 0 if drafted < 0 else 1 + step_of(_EDGES, drafted)
    return (((1 if sampled else 0) * (LONGEST_KEY + 1) + size) * _SIDE + column) * _SIDE + row


@kernel
def cell_of_asked(foreseen: bool, sampled: bool, chance: float, modelled: float) -> int:
    """Return the cell of a guess at a place where a draft model was asked, or that was foreseen.

    Args:
        chance: by its other cell; 0 = no other source has it. modelled: the confidence there; below 0 = it has not got it.
    """
    column = 0 if chance <= 0 else 1 + step_of(_EDGES, chance)
    row = 0 if modelled < 0 else 1 + step_of(_EDGES, modelled)
    return _PAIRS + (((2 if foreseen else 0) + (1 if sampled else 0)) * _SIDE + column) * _SIDE + row


@kernel
def count_trial(chances: Chances, cell: int, came_true: bool) -> None:
    """Count one guess."""
    if chances.trials[cell] >= _FADING:
        chances.trials[cell] *= 0.5
        chances.hits[cell] *= 0.5
    chances.trials[cell] += 1.0
    chances.hits[cell] += 1.0 if came_true else 0.0
