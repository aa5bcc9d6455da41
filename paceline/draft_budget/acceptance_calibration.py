"""How much a drafter's confidence is worth: what it said, against what came true. Counted while
decoding, and corrected by it.

Confidences fall into `STEPS` steps. A node is tried when the target has spoken at its parent,
whether the node was fed or not:

    step         0.25-0.4   0.4-0.55   0.55-0.7
    predicted       0.33       0.48       0.62
    came true       0.30       0.55       0.81     (of 212, 180, 95 trials)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.util.compiled import compiled, kernel

# between the steps
EDGES = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.07,
    0.12,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.88,
    0.94,
    0.98,
)
STEPS = len(EDGES) + 1
_PRIOR_TRIALS = 20.0  # for what a drafter says of itself
_FADING = 4000.0  # trials of a step that are remembered


class AcceptanceCalibration(NamedTuple):
    """Attributes, each [STEPS]: predicted: sum of the confidences tried. trials: how many. hits:
    how many came true.
    """

    predicted: NDArray[np.float64]
    trials: NDArray[np.float64]
    hits: NDArray[np.float64]


class FlatTrees(NamedTuple):
    """The trees of a step, one after the other. Attributes:

    parents, token_ids: [nodes]. confidence: [nodes] given the parent. starts: [1 + trees], where
    each tree begins.
    """

    parents: IntArray
    token_ids: IntArray
    confidence: NDArray[np.float64]
    starts: IntArray


def new_calibration() -> AcceptanceCalibration:
    """Return one that has counted nothing."""
    return AcceptanceCalibration(np.zeros(STEPS), np.zeros(STEPS), np.zeros(STEPS))


@kernel
def bucket_of(edges: tuple[float, ...], number: float) -> int:
    """Return how many of the edges, ascending, a number has reached."""
    step = 0
    for edge in edges:
        step += number >= edge
    return step


@kernel
def count_trial(
    hits: NDArray[np.float64],
    trials: NDArray[np.float64],
    index: int,
    accepted: bool,
    memory: float,
) -> None:
    """Count one trial in a table of hits and trials; halve older counts of a full entry.

    Args:
        hits: Number of accepted tokens, per entry.
        trials: Number of tried tokens, per entry.
        index: Entry to count in.
        accepted: Whether the target accepted the token.
        memory: Number of trials after which older trials count half.
    """
    if trials[index] >= memory:
        trials[index] *= 0.5
        hits[index] *= 0.5
    trials[index] += 1.0
    hits[index] += 1.0 if accepted else 0.0


@kernel
def corrected(acceptance_calibration: AcceptanceCalibration, confidence: float) -> float:
    """Return the chance of a node by what came true of those that were given about the same
    confidence.
    """
    step, prior = bucket_of(EDGES, confidence), _PRIOR_TRIALS * confidence
    chance: float = min(
        1.0,
        confidence
        * (prior + acceptance_calibration.hits[step])
        / max(prior + acceptance_calibration.predicted[step], 1e-9),
    )
    return chance


@compiled
def count(
    acceptance_calibration: AcceptanceCalibration,
    trees: FlatTrees,
    emitted: IntArray,
    ends: IntArray,
) -> None:
    """Count the nodes the target has decided on: all children of those it passed.

    Args:
        emitted: the new tokens of all sequences. ends: [1 + trees], where those of each begin and
            end.
    """
    for tree in range(len(trees.starts) - 1):
        parent, first = -1, trees.starts[tree]
        for place in range(ends[tree], ends[tree + 1]):
            passed = -1
            for node in range(first, trees.starts[tree + 1]):
                if trees.parents[node] != parent:
                    continue
                right = trees.token_ids[node] == emitted[place]
                _note(acceptance_calibration, trees.confidence[node], right)
                if right:
                    passed = node - first
            if passed < 0:
                break
            parent = passed


@kernel
def _note(acceptance_calibration: AcceptanceCalibration, confidence: float, right: bool) -> None:
    step = bucket_of(EDGES, confidence)
    if acceptance_calibration.trials[step] >= _FADING:
        for column in acceptance_calibration:
            column[step] *= 0.5
    acceptance_calibration.predicted[step] += confidence
    acceptance_calibration.trials[step] += 1.0
    acceptance_calibration.hits[step] += 1.0 if right else 0.0
