"""Define a step's result per drafter, and distribute outcomes to drafters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.draft_budget.drafts import DrafterBatch, Drafts
from paceline.verification.verify import with_top_tokens


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcomes of a step for one drafter's requests.

    Attributes:
        batch: The drafter batch.
        outcomes: Outcomes of the batch's ready requests.
        draft_seconds: Seconds spent in the draft model and in the hidden-state draft head.
        error: Error raised by the drafter; it affects only the requests in this batch.
    """

    batch: DrafterBatch
    outcomes: list[Outcome]
    draft_seconds: float = 0.0
    error: Exception | None = None


def distribute_outcomes(
    outcomes: list[Outcome], drafts: Sequence[Drafts], logits: NodeLogits
) -> list[BatchResult]:
    """Return the outcomes by drafter, with top tokens and the draft head's trees."""
    rows = {outcome.request: row for row, outcome in enumerate(outcomes)} if len(drafts) > 1 else {}
    results = []
    for each in drafts:
        indices = [rows[request] for request in each.ready] if rows else range(len(outcomes))
        selected = [outcomes[row] for row in indices]
        seconds, batch, top_k = each.draft_seconds, each.batch, each.state.drafter.top_k
        own = logits.select(indices) if top_k or batch.draft_head is not None else logits
        if top_k:
            selected = with_top_tokens(selected, own, top_k)
        if batch.draft_head is not None:
            start = time.perf_counter()
            selected = batch.draft_head.add_to(selected, own, batch.num_head_tokens)
            seconds += time.perf_counter() - start
        results.append(BatchResult(batch, selected, seconds))
    return results
