"""Define what a step brings to the requests of one drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.drafter import Outcome
from paceline.draft_budget.drafts import DrafterBatch


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a step brought to the requests of one drafter.

    Attributes:
        batch: The drafter batch.
        outcomes: Outcomes of its ready requests.
        draft_seconds: Seconds spent in the draft model and in the hidden-state draft head.
        error: Error of the drafter; it concerns the requests of this batch only.
    """

    batch: DrafterBatch
    outcomes: list[Outcome]
    draft_seconds: float = 0.0
    error: Exception | None = None
