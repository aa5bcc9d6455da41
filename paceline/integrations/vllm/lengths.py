"""Choose the draft length of every request in a batch.

vLLM verifies rows of any length in one forward pass, so the cost of every token can be weighed.
A step takes seconds(requests, draft tokens) and yields, per request, 1 + the sum of the acceptance
probabilities of its draft tokens. The proposer sorts the tokens of the whole batch by gain and
keeps
the number that maximises tokens per second. Probabilities fall along a chain, so the kept tokens
form
a prefix. The cost of a step is fitted to recent steps:

    seconds = a + b * requests + c * (1 if any draft) + d * draft tokens

Tokens of different requests have different value. Each saves a row of a later step, but a whole
step
only if the last of the running requests finishes earlier. Tokens of a request that is behind
therefore
count more, and tokens of one that is ahead little more than their row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import DraftTree
from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration, FlatTrees, corrected
from paceline.integrations.vllm.settings import StepCostSettings
from paceline.util.compiled import compiled

_SETTINGS = StepCostSettings()
_PRIOR = np.array(_SETTINGS.prior)
_PRIOR_WEIGHT = np.array(_SETTINGS.prior_weight)


class StepCosts:
    """Models the time of a step from recent measurements."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=_SETTINGS.window)
        self._since_fit = 0
        self._fit = _PRIOR

    def note(self, num_requests: int, drafted: int, seconds: float) -> None:
        """Record a step in which all requests continued.

        Args:
            num_requests: Number of requests.
            drafted: Number of draft tokens in the batch.
            seconds: Time of the step.
        """
        self._steps.append((num_requests, drafted, seconds))
        self._since_fit += 1
        if (
            self._since_fit >= _SETTINGS.refit_interval
            or len(self._steps) <= _SETTINGS.refit_interval
        ):
            self._since_fit = 0
            self._fit = _fitted(np.array(self._steps))

    def seconds(self, num_requests: int, max_tokens: int) -> NDArray[np.float64]:
        """Return the time of a step with 0 to `max_tokens` draft tokens, in median steps."""
        plain, drafting, per_token = self._parts(num_requests)
        result = plain + per_token * np.arange(max_tokens + 1, dtype=np.float64)
        result[1:] = (result[1:] + drafting) * _SETTINGS.margin
        return result

    def token_values(self, num_tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return the relative value of a token of each request.

        The values sum to the number of requests.

        Args:
            num_tokens: Number of tokens that each request has generated.
        """
        num_requests = len(num_tokens)
        plain, _, per_token = self._parts(num_requests)
        row = min(per_token, plain / num_requests)
        lead = np.asarray(num_tokens, dtype=np.float64)
        last_probability = np.exp(-(lead - lead.min()) / _SETTINGS.lead_tokens)
        last_probability /= last_probability.sum()
        result: NDArray[np.float64] = (row + (plain - row * num_requests) * last_probability) * (
            num_requests / plain
        )
        return result

    def _parts(self, num_requests: int) -> tuple[float, float, float]:
        """Return the time of a plain step, the extra for drafting and for each token."""
        a, b, c, d = self._fit
        return max(float(a + b * num_requests), 0.05), max(float(c), 0.0), max(float(d), 0.0)


def _fitted(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit a, b, c and d by least squares with a prior (ridge regression)."""
    num_requests, drafted, seconds = steps.T
    median = max(float(np.median(seconds)), 1e-9)
    inliers = seconds < _SETTINGS.outlier_factor * median
    inputs = np.stack(
        [np.ones(inliers.sum()), num_requests[inliers], drafted[inliers] > 0, drafted[inliers]],
        axis=1,
    )
    offset = seconds[inliers] / median - inputs @ _PRIOR
    fitted: NDArray[np.float64] = _PRIOR + np.linalg.solve(
        inputs.T @ inputs + np.diag(_PRIOR_WEIGHT), inputs.T @ offset
    )
    return fitted


def flatten(chains: Sequence[DraftTree]) -> FlatTrees:
    """Convert chains into the arrays of the acceptance calibration."""
    sizes = [len(chain) for chain in chains]
    confidence = [
        probability
        for chain in chains
        for probability in chain.confidence or [_SETTINGS.unknown_probability] * len(chain)
    ]
    return FlatTrees(
        np.array([node for chain in chains for node in chain.parents], dtype=np.int64),
        np.array([token for chain in chains for token in chain.token_ids], dtype=np.int64),
        np.nan_to_num(np.array(confidence, dtype=np.float64)).clip(
            0.0, 1.0
        ),  # guards against invalid values of a drafter
        np.cumsum([0, *sizes], dtype=np.int64),
    )


@compiled
def path_probabilities(
    acceptance_calibration: AcceptanceCalibration, chains: FlatTrees
) -> NDArray[np.float64]:
    """Return the probability of each node's path, calibrated by earlier outcomes."""
    probabilities = np.empty(len(chains.parents))
    for tree in range(len(chains.starts) - 1):
        probability = 1.0
        for node in range(chains.starts[tree], chains.starts[tree + 1]):
            probability *= corrected(acceptance_calibration, chains.confidence[node])
            probabilities[node] = probability
    return probabilities


def optimal_lengths(
    gains: NDArray[np.float64], starts: NDArray[np.int64], seconds: NDArray[np.float64]
) -> list[int]:
    """Return the number of tokens per chain that maximises tokens per second.

    Args:
        gains: Expected gain per node: path probability times value of a token; [nodes].
        starts: Index of the first node of each chain, and the end; [1 + chains].
        seconds: Time of the step by number of draft tokens; [1 + nodes].
    """
    num_requests = len(starts) - 1
    order = np.argsort(-gains, kind="stable")
    tokens = num_requests + np.concatenate(([0.0], np.cumsum(gains[order])))
    taken = np.zeros(len(gains), dtype=np.int64)
    taken[order[: int((tokens / seconds).argmax())]] = 1
    totals = np.concatenate(([0], np.cumsum(taken)))
    lengths: list[int] = (totals[starts[1:]] - totals[starts[:-1]]).tolist()
    return lengths
