"""Forward the properties and metrics of an `LLM` to its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.drafter import Drafter
    from paceline.core.metrics import EngineLoad, Timing
    from paceline.core.timed_target import TimedTarget
    from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration
    from paceline.draft_budget.cost_curve import CostCurve
    from paceline.draft_budget.costs import Costs
    from paceline.draft_budget.decisions import StepDecision
    from paceline.engine.engine import Engine
    from paceline.invariance.invariance import Invariance


class EngineFacade:
    """Provides the state and the metrics of an engine.

    Subclasses set `_engine`.
    """

    _engine: Engine

    @property
    def model(self) -> TimedTarget:
        """The target model with its KV cache."""
        return self._engine.model

    @property
    def drafter(self) -> Drafter:
        """Drafter for requests that do not name one."""
        return self._engine.drafter

    def change_drafter(self, drafter: Drafter) -> None:
        """Change the default drafter; allowed only while no request is open.

        Args:
            drafter: The new drafter.
        Raises:
            ConfigError: Requests are open, or the drafter cannot be used with the model.
        """
        self._engine.change_drafter(drafter)

    @property
    def invariance(self) -> Invariance:
        """State of batch invariance: on or off, and the reason."""
        return self._engine.invariance

    @property
    def acceptance_calibration(self) -> AcceptanceCalibration | None:
        """Measured acceptance rates by confidence bin; None if there is no draft budget."""
        return self._engine.acceptance_calibration

    @property
    def cost_curve(self) -> CostCurve | None:
        """Seconds per forward pass by number of rows, as used by the draft budget.

        The value is None if there is no draft budget, or if the budget has not needed the curve
        yet.
        """
        draft_budget = self._engine.draft_budget
        return None if draft_budget is None else draft_budget.curve

    @property
    def costs(self) -> Costs | None:
        """Measured cost of forward passes, with the conditions of the measurement.

        The value is None if there is no draft budget.
        """
        return self._engine.costs

    def check_loaded_costs(self) -> None:
        """Check a cost curve loaded from disk immediately, before an answer needs it.

        Without this call, the engine checks the curve after using it for one second. The first
        answer loads the curve, so call the method after that answer.
        """
        self._engine.check_loaded_costs()

    def finish_draft_head(self) -> None:
        """Load or fit the drafter's draft head immediately, if it uses one.

        Without this call, an engine on a GPU fits the head in portions between the first decode
        steps. The drafter does not use the head until the fit is complete.
        """
        self._engine.finish_draft_head()

    @property
    def draft_decisions(self) -> list[StepDecision]:
        """The draft budget's decisions in the most recent steps, oldest first.

        The list is empty unless `DraftBudgetSettings.recorded_steps` is set.
        """
        draft_budget = self._engine.draft_budget
        return [] if draft_budget is None else list(draft_budget.decisions)

    @property
    def plain_seconds(self) -> float | None:
        """Seconds per step of plain decoding for a single request.

        The value comes from the cost curve, corrected by measured steps. It is None whenever
        `cost_curve` is None.
        """
        draft_budget = self._engine.draft_budget
        return None if draft_budget is None else draft_budget.plain_seconds

    @property
    def timing(self) -> Timing:
        """Total duration of all steps since construction, split by kind of work."""
        return self._engine.timing

    @property
    def load(self) -> EngineLoad:
        """Totals of completed work, and the current number of open requests.

        The values cover all callers of the engine.
        """
        return self._engine.load
