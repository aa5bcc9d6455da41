"""Choose draft lengths from measured step times, without a cost curve.

vLLM runs the forward passes, so paceline cannot time them individually as `cost_measuring` does.
Instead, a linear model is fitted to recent steps:

    seconds = a + b * requests + c * (1 if any draft) + d * draft tokens

vLLM verifies drafts of different lengths in one forward pass, as in a ragged batch. All draft
tokens in the batch are sorted by gain, and the number that maximises tokens per second is chosen.
Path probabilities decrease along a chain, so the chosen tokens are always the first ones of each
chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from paceline.core.flat_trees import FlatTrees, Floats, flatten_trees
from paceline.core.tree import DraftTree, IntArray
from paceline.draft_budget.best_count import best_count, nodes_per_tree, tree_of_nodes
from paceline.draft_budget.settings import STEP_COST_DEFAULTS, StepCostSettings


class StepCosts:
    """Predicts the duration of a step by ridge regression over recent steps.

    In contrast, `CostCurve` stores the durations of individually timed forward passes, and
    `CostCorrection` adapts that curve to measured steps.

    Args:
        settings: Settings of the regression.
    """

    def __init__(self, settings: StepCostSettings = STEP_COST_DEFAULTS) -> None:
        self._settings = settings
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=settings.window)
        self._since_fit = 0
        self._prior = np.array(settings.prior)
        self._fit = self._prior

    def note(self, num_requests: int, num_drafted: int, seconds: float) -> None:
        """Record the duration of a step that only decoded tokens.

        Args:
            num_requests: Number of requests in the step.
            num_drafted: Number of draft tokens in the batch.
            seconds: Duration of the step.
        """
        self._steps.append((num_requests, num_drafted, seconds))
        self._since_fit += 1
        if (
            self._since_fit >= self._settings.refit_interval
            or len(self._steps) <= self._settings.refit_interval
        ):
            self._since_fit = 0
            self._fit = self._fitted(np.array(self._steps))

    def seconds(self, num_requests: int, max_tokens: int) -> Floats:
        """Return the predicted durations of steps with 0, 1, ... draft tokens.

        The unit is the median duration of recent steps.

        Args:
            num_requests: Number of requests in the step.
            max_tokens: Largest number of draft tokens for which to predict the duration.
        """
        plain, drafting, per_token = self._parts(num_requests)
        result = plain + per_token * np.arange(max_tokens + 1, dtype=np.float64)
        result[1:] = (result[1:] + drafting) * self._settings.margin
        return result

    def token_values(self, num_tokens: Sequence[int]) -> Floats:
        """Return the relative value of one token for each request; the mean is 1.

        The value of a token is the time that the token is expected to save. Every accepted token
        saves one row in a later forward pass. If its request is the last to finish, the token saves
        a whole step. Most likely, the last request is the one with the fewest generated tokens, so
        a token of this request has the highest value. For requests that are far ahead, the value is
        little more than that of the saved row.

        Args:
            num_tokens: Number of tokens generated so far for each request.
        """
        num_requests = len(num_tokens)
        plain, _, per_token = self._parts(num_requests)
        row = min(per_token, plain / num_requests)
        lead = np.asarray(num_tokens, dtype=np.float64)
        last_probability = np.exp(-(lead - lead.min()) / self._settings.lead_tokens)
        last_probability /= last_probability.sum()
        result: Floats = (row + (plain - row * num_requests) * last_probability) * (
            num_requests / plain
        )
        return result

    def _parts(self, num_requests: int) -> tuple[float, float, float]:
        """Return the time of a step without drafts, of drafting, and of each draft token.

        The unit is the median duration of recent steps.
        """
        a, b, c, d = self._fit
        return max(float(a + b * num_requests), 0.05), max(float(c), 0.0), max(float(d), 0.0)

    def _fitted(self, steps: Floats) -> Floats:
        """Fit the four coefficients by ridge regression, which keeps them near the prior."""
        num_requests, num_drafted, seconds = steps.T
        median = max(float(np.median(seconds)), 1e-9)
        inliers = seconds < self._settings.outlier_factor * median
        inputs = np.stack(
            [
                np.ones(inliers.sum()),
                num_requests[inliers],
                num_drafted[inliers] > 0,
                num_drafted[inliers],
            ],
            axis=1,
        )
        offset = seconds[inliers] / median - inputs @ self._prior
        weights = np.diag(np.array(self._settings.prior_weight))
        change = np.linalg.solve(inputs.T @ inputs + weights, inputs.T @ offset)
        fitted: Floats = self._prior + change
        return fitted


def flatten_chains(
    chains: Sequence[DraftTree], settings: StepCostSettings = STEP_COST_DEFAULTS
) -> FlatTrees:
    """Convert chains into the arrays used by the acceptance calibration.

    Drafters from other packages may report confidences that are not probabilities. Such values are
    clipped to the range from 0 to 1, and NaN becomes 0.
    """
    trees = flatten_trees(chains, settings.unknown_probability)
    return trees._replace(confidence=np.nan_to_num(trees.confidence).clip(0.0, 1.0))


def optimal_lengths(gains: Floats, starts: IntArray, seconds: Floats) -> list[int]:
    """Choose the length of each chain to maximise the tokens per second.

    Args:
        gains: Expected gain of each node, [nodes]: the node's path probability, multiplied by the
            value of a token for the node's request.
        starts: Index of each chain's first node, followed by the total number of nodes; [1 +
            chains].
        seconds: Duration of the step with 0, 1, ... draft tokens; [1 + nodes].
    """
    num_requests = len(starts) - 1
    order = np.argsort(-gains, kind="stable")
    chosen = order[: best_count(np.concatenate(([num_requests], gains[order])), seconds)]
    return nodes_per_tree(tree_of_nodes(starts), chosen, num_requests)
