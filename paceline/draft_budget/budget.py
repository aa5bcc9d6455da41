"""Decide how many draft nodes of a step the target verifies.

A step of a batch takes t(rows) seconds and yields Y tokens: one per request, and the probability of
the path to each draft node. Trees list their likeliest paths first, so that the first nodes of a
tree are its best ones, with their parents. In a ragged batch the budget takes nodes by falling
probability over the whole batch, whatever their drafter, as many as yield the most tokens per
second. In a padded batch it chooses one width for all trees. 0 nodes is plain decoding. The cost
curve was measured with two text lengths; measured steps correct it per number of requests.

Trees without confidences are verified whole or not at all. Their drafter rests while it yields less
than plain decoding in the same time, and is tried again ever more rarely. The same holds for a
drafter that cannot do without a draft model: its time has passed before there is a tree to cut. In
a batch of several drafters whole trees come on top of the cut ones. In a padded batch, nodes up to
the width of the whole trees are free. A whole tree costs what it is wider than the next narrower
one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from paceline.core.drafter import Outcome
from paceline.draft_budget.acceptance_calibration import Floats
from paceline.draft_budget.budgeted_drafts import BudgetedDrafts
from paceline.draft_budget.cost_correction import CostCorrection
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.decisions import StepDecision, decide_step
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.draft_budget.drafts import Drafts
from paceline.draft_budget.node_selection import NodeSelector, PaddedSelector, RaggedSelector
from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings


class DraftBudget:
    """Select the draft nodes of each step for one engine.

    Args:
        curve: Returns the cost of forward passes; called when it is first needed.
        renew: Called between steps with the seconds of the steps since the last call; returns
            whether `curve` has another result now. None: the curve was given, and measured steps
            do not correct it.
        settings: Settings of the selection and the correction.
    Attributes:
        decisions: Decisions of the newest steps, if `DraftBudgetSettings.recorded_steps` or
            `record` turns them on; else empty.
    """

    def __init__(
        self,
        curve: Callable[[], CostCurve],
        renew: Callable[[float], bool] | None = lambda seconds: False,
        settings: DraftBudgetSettings = DEFAULTS,
    ) -> None:
        self._renew, self._settings = renew, settings
        self._seconds_used = 0.0
        self._make_curve = curve
        self._curve: CostCurve | None = None
        # Seconds by the curve; by rows, rows per unit, and text length.
        self._costs: dict[tuple[int, int, int], Floats] = {}
        self._context = 0  # rounded text length of a request in the newest step, in tokens
        self._corrections: dict[int, CostCorrection] = {}  # by the number of requests
        self._newest: CostCorrection | None = None
        # Of the newest step: whether it has drafts, and its seconds by the curve.
        self._expected: tuple[bool, float] | None = None
        self.decisions: deque[StepDecision] = deque(maxlen=settings.recorded_steps)

    @property
    def curve(self) -> CostCurve | None:
        """The cost of forward passes; None before it was needed."""
        return self._curve

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of a step of one request without drafts.

        The value comes from the cost curve, corrected by measured steps of this kind. It is None
        before the curve was needed.
        """
        if self._curve is None:
            return None
        return float(self._seconds(1, 1, 0)[0]) * (
            self._corrections[1].plain if 1 in self._corrections else 1.0
        )

    def new_stats(self) -> DrafterStats:
        """Return empty statistics for a drafter."""
        return DrafterStats.with_settings(self._settings)

    def record(self, num_steps: int) -> None:
        """Record the decisions of the newest steps in `decisions`.

        Args:
            num_steps: Number of steps to hold; 0 records none.
        """
        self.decisions = deque(self.decisions, maxlen=num_steps)

    def cut(
        self, drafts: Sequence[Drafts], num_requests: int, rows: int, ragged: bool = False
    ) -> list[BudgetedDrafts]:
        """Cut the trees of a step to the nodes that save time.

        Trees without confidences and sampled trees stay as they are.

        Args:
            drafts: Drafts of the step.
            num_requests: Number of requests in the forward pass.
            rows: Rows of the forward pass without trees, padding included.
            ragged: True if the batch is ragged; else each request has the rows of the widest tree.
        Returns:
            The drafts with the trees to verify; `observe` takes them back after the step.
        """
        cut = [BudgetedDrafts(each) for each in drafts]
        selector = (
            RaggedSelector(cut, self._settings)
            if ragged
            else PaddedSelector(cut, self._settings, num_requests)
        )
        by_curve = self._seconds_by_curve(drafts, num_requests, rows, selector)
        correction = self._correction(num_requests)
        # A prompt runs in any case: its drafts must pay for what they add, in comparison with a
        # step of plain decoding. Where such steps take longer than by the curve, because each
        # request reads another text, drafts add less to them, but something.
        seconds = self._seconds(num_requests, 1, 0)[0] + min(1.0, correction.factor) * (
            by_curve - by_curve[0]
        )
        seconds[1:] *= self._settings.gain_margin * max(1.0, correction.factor)
        num_units = selector.cut(seconds)
        if self.decisions.maxlen:
            self.decisions.append(decide_step(selector, cut, seconds, num_units))
        selector.charge(seconds)
        # A step with prompts says nothing about decoding.
        decodes = rows == num_requests
        self._expected = (num_units > 0, float(by_curve[num_units])) if decodes else None
        if decodes:
            plain_s = float(seconds[0]) * correction.plain
            _charge_drafting(cut, selector, seconds / seconds[0], plain_s)
        return cut

    def observe(
        self,
        cut: Sequence[BudgetedDrafts],
        outcomes: Sequence[Sequence[Outcome]],
        draft_seconds: float,
        seconds: float,
    ) -> None:
        """Learn from the outcomes and the time of the newest step.

        Args:
            cut: Result of `cut`.
            outcomes: Outcomes of the ready requests, per drafts.
            draft_seconds: Seconds of draft models and draft heads in the step.
            seconds: Time of the whole step, drafting included.
        """
        self._seconds_used += seconds
        if self._renew is not None and self._expected is not None and self._newest is not None:
            drafted, expected = self._expected
            self._newest.note(drafted, seconds - draft_seconds, expected)
            self._expected = None
        tokens = sum(len(outcome.new_token_ids) for group in outcomes for outcome in group)
        for drafts, group in zip(cut, outcomes, strict=True):
            drafts.learn(group, tokens)

    def renew(self) -> None:
        """Check the cost curve between two steps, if a check is due."""
        if self._renew is not None and self._renew(self._seconds_used):
            self._curve = self._newest = self._expected = None
            self._costs.clear()
            self._corrections.clear()
        self._seconds_used = 0.0

    def _correction(self, num_requests: int) -> CostCorrection:
        """Return the correction for a number of requests.

        A new one starts with the values of the newest one.
        """
        if num_requests not in self._corrections:
            self._corrections[num_requests] = CostCorrection(self._settings, self._newest)
        self._newest = self._corrections[num_requests]
        return self._newest

    def _seconds_by_curve(
        self,
        drafts: Sequence[Drafts],
        num_requests: int,
        rows: int,
        selector: NodeSelector,
    ) -> Floats:
        """Return the time of the step by its number of units, at its text length."""
        cached = sum(request.cached for each in drafts for request in each.batch.requests)
        step = self._settings.context_step
        self._context = round(cached / num_requests / step) * step
        return self._seconds(rows, selector.rows_per_unit, selector.num_units)

    def _seconds(self, rows: int, rows_per_unit: int, num_units: int) -> Floats:
        """Return the time of steps with 0 to `num_units` units by the curve."""
        key = rows, rows_per_unit, self._context
        if len(self._costs.get(key, ())) <= num_units:
            self._curve = self._curve or self._make_curve()
            if len(self._costs) == self._settings.max_cached_costs:
                self._costs.clear()
            self._costs[key] = self._curve.of(
                rows + rows_per_unit * np.arange(num_units + 1), self._context
            )
        return self._costs[key][: num_units + 1]


def _charge_drafting(
    cut: Sequence[BudgetedDrafts], selector: NodeSelector, costs: Floats, plain_s: float
) -> None:
    """Add the time of draft models to the cost of their drafts.

    A drafter that rests did not run its model, and is not judged by the step.

    Args:
        cut: Drafts of the step, after the cut.
        selector: Selector that has cut the trees.
        costs: Cost of the step by its number of units, in steps without trees.
        plain_s: Seconds of a step without trees.
    """
    for drafts in cut:
        model_s, state = drafts.proposed.draft_seconds, drafts.state
        if model_s and state.drafter.needs_draft_model and state.stats is not None:
            cost = drafts.cost or float(costs[selector.units(drafts)])
            drafts.cost = cost + model_s / plain_s
