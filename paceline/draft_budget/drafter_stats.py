"""Group the statistics that an engine keeps on one drafter."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.drafter import Drafter
from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration, new_calibration
from paceline.draft_budget.drafting_backoff import DraftingBackoff
from paceline.draft_budget.settings import DraftBudgetSettings


@dataclass(eq=False, slots=True)
class DrafterStats:
    """Statistics on a drafter's accepted nodes, and on the time that it saves.

    Attributes:
        acceptance_calibration: Acceptance rates by the drafter's confidence.
        gate: Gate that switches the drafter off while drafting is slower than plain decoding.
    """

    acceptance_calibration: AcceptanceCalibration = field(default_factory=new_calibration)
    gate: DraftingBackoff = field(default_factory=DraftingBackoff)

    @classmethod
    def with_settings(cls, settings: DraftBudgetSettings) -> DrafterStats:
        """Return empty statistics that use the given settings."""
        return cls(new_calibration(settings), DraftingBackoff(settings))

    def top_k(self, drafter: Drafter) -> int:
        """Return how many of the target's most likely tokens the drafter needs per node.

        The result is 0 while the next trial is far off (`DraftingBackoff.is_dormant`), unless
        `Drafter.learns_at_rest` is True.
        """
        dormant = self.gate.is_dormant and not drafter.learns_at_rest
        return 0 if dormant else drafter.top_k
