"""Hold one drafter's statistics in one engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration, new_calibration
from paceline.draft_budget.drafting_backoff import DraftingBackoff
from paceline.draft_budget.settings import DraftBudgetSettings


@dataclass(eq=False, slots=True)
class DrafterStats:
    """Acceptance rates of a drafter's nodes, and whether drafting saves time.

    Attributes:
        acceptance_calibration: How often nodes were accepted, by confidence.
        gate: Switches the drafter off while drafting is slower than plain decoding.
    """

    acceptance_calibration: AcceptanceCalibration = field(default_factory=new_calibration)
    gate: DraftingBackoff = field(default_factory=DraftingBackoff)

    @classmethod
    def with_settings(cls, settings: DraftBudgetSettings) -> DrafterStats:
        """Return empty statistics that use the settings."""
        return cls(new_calibration(settings), DraftingBackoff(settings))
