"""Decide how many of a step's draft nodes the target verifies.

The draft budget maximises the expected number of tokens per second. The expected number of tokens
in a step is one per request, plus the path probability of each draft node. The duration of a step
depends on the number of rows. A cost curve, measured at two text lengths, predicts the duration.
The measured durations of later steps correct the curve, separately for each number of requests.

In every tree, the most likely paths come first, and a parent precedes its children. The budget can
therefore cut a tree to its first nodes. In a ragged batch, the budget ranks the nodes of all trees
by path probability, and chooses how many of the best nodes to verify. In a padded batch, the budget
chooses one width for all trees. If the budget chooses 0 nodes, the step is plain decoding.

Trees without confidences are verified whole or not at all. If a drafter of such trees produces
fewer tokens than plain decoding in the same time, the budget pauses the drafter, and retries it at
growing intervals. The budget also pauses a drafter that requires a draft model, if the drafter is
too slow. In this case, cutting trees would not help, because the draft model has already run when
the budget receives a tree.

A batch with several drafters may contain both whole trees (without confidences) and trees that can
be cut. In a padded batch, every tree is padded to the width of the widest tree. This has two
effects:

- Up to the width of the widest whole tree, nodes of other trees add no rows. The budget keeps them.
- Whole trees of several drafters share rows. To divide their cost, the budget adds the drafters one
  after another, from the narrowest trees to the widest. The cost of a drafter includes only the
  rows that its trees add.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from paceline.core.drafter import Outcome
from paceline.core.flat_trees import Floats
from paceline.draft_budget.best_count import step_seconds
from paceline.draft_budget.budgeted_drafts import BudgetedDrafts
from paceline.draft_budget.cost_correction import CostCorrection
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.decisions import StepDecision, decide_step
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.draft_budget.drafts import Drafts
from paceline.draft_budget.node_selection import NodeSelector, PaddedSelector, RaggedSelector
from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings
from paceline.util.timing_settings import TIMING


class DraftBudget:
    """Selects the draft nodes to verify in each step of an engine.

    Args:
        curve: Function that returns the cost curve: the duration of a forward pass by number of
            rows and text length. The budget calls the function when it first needs the curve.
        renew: Function that checks the curve between steps, and returns whether the curve has
            changed. `Costs.renew` describes the arguments. None means that the user supplied the
            curve, and that measured steps do not correct the curve.
        settings: Settings for the selection of nodes and the correction of the curve.
    Attributes:
        decisions: Decisions in the most recent steps; empty unless `record` or
            `DraftBudgetSettings.recorded_steps` enables recording.
    """

    def __init__(
        self,
        curve: Callable[[], CostCurve],
        renew: Callable[[float, Callable[[], bool]], bool] | None = lambda *_: False,
        settings: DraftBudgetSettings = DEFAULTS,
    ) -> None:
        self._renew, self._settings = renew, settings
        self._seconds_used = 0.0
        self._make_curve = curve
        self._curve: CostCurve | None = None
        # Seconds from the curve, keyed by rows, rows per unit, and text length.
        self._costs: dict[tuple[int, int, int], Floats] = {}
        self._context = 0  # rounded text length per request in the newest step, in tokens
        self._corrections: dict[int, CostCorrection] = {}  # by the number of requests
        self._newest: CostCorrection | None = None
        self._warmed_up = False  # the first step includes work that is done only once
        # For the newest step: whether it has drafts, and its expected seconds from the curve.
        self._expected: tuple[bool, float] | None = None
        self.decisions: deque[StepDecision] = deque(maxlen=settings.recorded_steps)

    @property
    def curve(self) -> CostCurve | None:
        """The cost curve of forward passes; None until it is first needed."""
        return self._curve

    @property
    def plain_seconds(self) -> float | None:
        """Seconds per step for one request without drafts.

        The value comes from the cost curve, corrected by measured steps. The value is None until
        the curve is first needed.
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
        """Keep the decisions of the last `num_steps` steps in `decisions`.

        Args:
            num_steps: Number of steps to keep; 0 keeps none.
        """
        self.decisions = deque(self.decisions, maxlen=num_steps)

    def cut(
        self, drafts: Sequence[Drafts], num_requests: int, rows: int, ragged: bool = False
    ) -> list[BudgetedDrafts]:
        """Cut a step's trees to the nodes that save time.

        Sampled trees, and trees without confidences, are left unchanged.

        Args:
            drafts: Drafts of the step.
            num_requests: Number of requests in the forward pass.
            rows: Number of rows that the forward pass has without the trees, including padding.
            ragged: Whether the batch is ragged. In a padded batch, each request is padded to the
                width of the widest tree.
        Returns:
            The drafts with the trees to verify. Pass these drafts to `observe` after the step.
        """
        cut = [BudgetedDrafts(each) for each in drafts]
        if not self.decisions.maxlen and not any(
            each.width or each.proposed.draft_seconds for each in cut
        ):
            self._expect(drafts, num_requests, rows)
            return cut
        selector = RaggedSelector(cut) if ragged else PaddedSelector(cut, num_requests)
        by_curve = self._seconds_by_curve(drafts, num_requests, rows, selector)
        correction = self._correction(num_requests)
        # A prompt is computed in any case, so drafts must justify only the time they add, compared
        # with a plain decoding step. Plain steps may take longer than on the curve, because each
        # request reads a different text. In that case, drafts add relatively little time, but still
        # some.
        plain_s = float(self._seconds(num_requests, 1, 0)[0])
        seconds = step_seconds(by_curve, plain_s, correction.factor, self._settings.gain_margin)
        num_units = selector.cut(seconds)
        if self.decisions.maxlen:
            self.decisions.append(decide_step(selector, cut, seconds, num_units))
        selector.charge(seconds)
        # A step with prompts says nothing about decoding.
        decodes = rows == num_requests
        self._expected = (num_units > 0, float(by_curve[num_units])) if decodes else None
        if decodes:
            _charge_drafting(cut, selector, seconds, correction.plain)
        return cut

    def _expect(self, drafts: Sequence[Drafts], num_requests: int, rows: int) -> None:
        """Store the expected duration of a step without drafts."""
        self._correction(num_requests)
        self._set_context(drafts, num_requests)
        decodes = rows == num_requests
        self._expected = (False, float(self._seconds(rows, 1, 0)[0])) if decodes else None

    def observe(
        self,
        cut: Sequence[BudgetedDrafts],
        outcomes: Sequence[Sequence[Outcome]],
        draft_seconds: float,
        seconds: float,
    ) -> None:
        """Learn from the outcomes and the duration of the most recent step.

        Args:
            cut: Result of `cut`.
            outcomes: For each entry of `cut`, the outcomes of the entry's requests that are ready
                to decode (`Drafts.ready`).
            draft_seconds: Seconds spent in draft models and draft heads during the step.
            seconds: Duration of the whole step, including drafting.
        """
        if self._renew is not None and self._expected is not None and self._newest is not None:
            drafted, expected = self._expected
            self._seconds_used += expected
            if self._warmed_up:
                self._newest.note(drafted, seconds - draft_seconds, expected)
            self._warmed_up, self._expected = True, None
        tokens = sum(len(outcome.new_token_ids) for group in outcomes for outcome in group)
        for drafts, group in zip(cut, outcomes, strict=True):
            drafts.learn(group, tokens)

    def renew(self) -> None:
        """Check the cost curve between two steps, if a check is due."""
        self._check_curve(lambda: self._newest is not None and self._newest.confirms_curve)

    def check_loaded(self) -> None:
        """Check a cost curve loaded from disk immediately, before an answer needs it."""
        self._seconds_used += TIMING.loaded_pause_s
        self._check_curve(lambda: False)

    def _check_curve(self, is_confirmed: Callable[[], bool]) -> None:
        if self._renew is not None and self._renew(self._seconds_used, is_confirmed):
            self._curve = self._newest = self._expected = None
            self._costs.clear()
            self._corrections.clear()
        self._seconds_used = 0.0

    def _correction(self, num_requests: int) -> CostCorrection:
        """Return the correction of the cost curve for steps with `num_requests` requests.

        The first call for a number of requests creates the correction, which starts with the values
        of the correction that was used last.
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
        """Return the durations of a step with 0, 1, ... units of draft nodes.

        In a ragged batch, a unit is one node. In a padded batch, a unit is one node of every tree
        (`NodeSelector`). The durations come from the cost curve, for the mean text length of the
        requests.
        """
        self._set_context(drafts, num_requests)
        return self._seconds(rows, selector.rows_per_unit, selector.num_units)

    def _set_context(self, drafts: Sequence[Drafts], num_requests: int) -> None:
        """Store the rounded mean text length of the requests."""
        cached = sum(request.cached for each in drafts for request in each.batch.requests)
        step = self._settings.context_step
        self._context = round(cached / num_requests / step) * step

    def _seconds(self, rows: int, rows_per_unit: int, num_units: int) -> Floats:
        """Return the durations of steps with 0 to `num_units` units of draft nodes.

        A unit is one node, or in a padded batch one node of every tree (`NodeSelector`). Without
        draft nodes, a step has `rows` rows.
        """
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
    cut: Sequence[BudgetedDrafts], selector: NodeSelector, seconds: Floats, correction: float
) -> None:
    """Add the draft models' running time to the cost of their drafts.

    The added cost is the draft model's running time, divided by the duration of a step without
    trees. A paused drafter has not run its draft model. The function skips such a drafter, so the
    step does not affect the drafter's statistics.

    Args:
        cut: Drafts of the step, after the cut.
        selector: Selector that cut the trees.
        seconds: Durations of the step with 0, 1, ... units of nodes, in seconds. A unit is one
            node, or in a padded batch one node of every tree (`NodeSelector`).
        correction: Correction factor for steps without trees (`CostCorrection.plain`).
    """
    for drafts in cut:
        model_s, state = drafts.proposed.draft_seconds, drafts.state
        if model_s and state.drafter.needs_draft_model and state.stats is not None:
            plain_s = float(seconds[0])
            cost = drafts.cost or float(seconds[selector.units(drafts)]) / plain_s
            drafts.cost = cost + model_s / (plain_s * correction)
