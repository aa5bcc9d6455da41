"""How long each draft of a step is. vLLM verifies rows of any lengths in one forward, so every
token pays for itself.

A step of a batch takes seconds(sequences, drafted) and yields, for each sequence, 1 + the chances
of the paths to its drafted tokens. The tokens of the whole batch that bring most come first, as
many as give the most per second; chances fall along a chain, so what is taken of it is its
beginning. What steps take is fitted to the newest ones:

    seconds = a + b * sequences + c * (1 if anything is drafted) + d * drafted

Not every sequence's tokens are worth the same. Each saves the row of a later step, but a step
itself is saved only where the last sequence of those that run together ends sooner. So tokens of a
sequence that is behind count for more, and those of one that is ahead for little more than their
row: else a batch for whose places nobody waits would pay for drafts, and take as many steps as its
slowest sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import DraftTree
from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration, FlatTrees, corrected
from paceline.util.compiled import compiled

_WINDOW, _EVERY = 256, 8  # newest steps that the fit is of; and steps between two fits
_OUTLIER = 4.0  # times the median: the machine did something else
# Of a, b, c and d, in steps of median length: what they are before anything is known, and how many
# steps that counts for. Drafts are believed to be cheap, so that they are tried; what was too dear
# is tried again when the window has forgotten it.
_PRIOR = np.array([1.0, 0.0, 0.0, 0.01])
_STRENGTH = np.array([0.01, 0.1, 1.0, 4.0])
_MARGIN = 1.1  # of the seconds of a step with drafts: a smaller gain is within the error of the fit
_BEHIND = (
    2.5  # tokens by which a sequence is further, and e times less likely to be the last to end
)
_UNKNOWN = 0.5  # the chance of a guess whose drafter says none, before it has been counted


class StepCosts:
    """What a step takes, by what was seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int, float]] = deque(maxlen=_WINDOW)
        self._since_fit = 0
        self._fit = _PRIOR

    def note(self, sequences: int, drafted: int, seconds: float) -> None:
        """Take in a step of `sequences` that all go on, with `drafted` draft tokens in all."""
        self._seen.append((sequences, drafted, seconds))
        self._since_fit += 1
        if self._since_fit >= _EVERY or len(self._seen) <= _EVERY:
            self._since_fit = 0
            self._fit = _fitted(np.array(self._seen))

    def seconds(self, sequences: int, most: int) -> NDArray[np.float64]:
        """Return what a step takes with 0 to `most` draft tokens [1 + most], in steps of median
        length.
        """
        plain, drafting, each = self._parts(sequences)
        found = plain + each * np.arange(most + 1, dtype=np.float64)
        found[1:] = (found[1:] + drafting) * _MARGIN
        return found

    def worth(self, said: Sequence[int]) -> NDArray[np.float64]:
        """Return what a token of each sequence is worth, in tokens of all alike [sequences]; they
        add up to as many as there are.

        Args:
            said: how many tokens each sequence has said so far.
        """
        sequences = len(said)
        plain, _, each = self._parts(sequences)
        row = min(each, plain / sequences)
        ahead = np.asarray(said, dtype=np.float64)
        last = np.exp(-(ahead - ahead.min()) / _BEHIND)
        last /= last.sum()
        found: NDArray[np.float64] = (row + (plain - row * sequences) * last) * (sequences / plain)
        return found

    def _parts(self, sequences: int) -> tuple[float, float, float]:
        """What a step without drafts takes, what drafting at all adds, and each draft token."""
        a, b, c, d = self._fit
        return max(float(a + b * sequences), 0.05), max(float(c), 0.0), max(float(d), 0.0)


def _fitted(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a, b, c and d by least squares, drawn towards what is believed without any step."""
    sequences, drafted, seconds = seen.T
    usual = max(float(np.median(seconds)), 1e-9)
    kept = seconds < _OUTLIER * usual
    inputs = np.stack(
        [np.ones(kept.sum()), sequences[kept], drafted[kept] > 0, drafted[kept]], axis=1
    )
    offset = seconds[kept] / usual - inputs @ _PRIOR
    fitted: NDArray[np.float64] = _PRIOR + np.linalg.solve(
        inputs.T @ inputs + np.diag(_STRENGTH), inputs.T @ offset
    )
    return fitted


def flatten(chains: Sequence[DraftTree]) -> FlatTrees:
    """Return chains as the arrays by which their chances are counted."""
    sizes = [len(chain) for chain in chains]
    confidence = [one for chain in chains for one in chain.confidence or [_UNKNOWN] * len(chain)]
    return FlatTrees(
        np.array([node for chain in chains for node in chain.parents], dtype=np.int64),
        np.array([token for chain in chains for token in chain.token_ids], dtype=np.int64),
        np.nan_to_num(np.array(confidence, dtype=np.float64)).clip(
            0.0, 1.0
        ),  # whatever a drafter says
        np.cumsum([0, *sizes], dtype=np.int64),
    )


@compiled
def path_chances(
    acceptance_calibration: AcceptanceCalibration, chains: FlatTrees
) -> NDArray[np.float64]:
    """Return the chance that each node of some chains is accepted [nodes]: of its path, by what
    came true of earlier ones.
    """
    chances = np.empty(len(chains.parents))
    for tree in range(len(chains.starts) - 1):
        chance = 1.0
        for node in range(chains.starts[tree], chains.starts[tree + 1]):
            chance *= corrected(acceptance_calibration, chains.confidence[node])
            chances[node] = chance
    return chances


def paying_lengths(
    gains: NDArray[np.float64], starts: NDArray[np.int64], seconds: NDArray[np.float64]
) -> list[int]:
    """Return how many tokens of each chain pay for what they cost.

    Args:
        gains: [nodes] chances of the paths, by what a token is worth. starts: [1 + chains] where
            each chain begins.
        seconds: [1 + nodes] of the step, by its draft tokens.
    """
    sequences = len(starts) - 1
    best = np.argsort(-gains, kind="stable")
    tokens = sequences + np.concatenate(([0.0], np.cumsum(gains[best])))
    taken = np.zeros(len(gains), dtype=np.int64)
    taken[best[: int((tokens / seconds).argmax())]] = 1
    totals = np.concatenate(([0], np.cumsum(taken)))
    lengths: list[int] = (totals[starts[1:]] - totals[starts[:-1]]).tolist()
    return lengths
