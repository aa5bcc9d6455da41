"""Complete the verification outcomes of a step, and group them by drafter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.tree import DraftTree
from paceline.draft_budget.drafts import DrafterBatch, Drafts
from paceline.util.device_copies import finish
from paceline.verification.logprobs import score_outcomes


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The verification outcomes of a step, for the requests of one drafter.

    Attributes:
        batch: The drafter and its requests.
        outcomes: One outcome for each request that was ready to decode.
        draft_seconds: Seconds spent in the draft model and in the hidden-state draft head.
        error: Error that the drafter raised, or None. The error affects only the requests in this
            batch.
    """

    batch: DrafterBatch
    outcomes: list[Outcome]
    draft_seconds: float = 0.0
    error: Exception | None = None


def distribute_outcomes(
    outcomes: Sequence[Outcome], drafts: Sequence[Drafts], logits: NodeLogits
) -> list[BatchResult]:
    """Group a step's outcomes by drafter, and complete the outcomes.

    An outcome is the result of verifying one draft tree. This function adds the values that
    drafters and requests need: log-probabilities, top tokens and the draft trees of draft heads. A
    single transfer copies all added values from the device.

    Args:
        outcomes: Outcomes of the step.
        drafts: The step's draft trees, one entry per drafter.
        logits: The target's logits, with rows in the order of `outcomes`.
    """
    rows = {outcome.request: row for row, outcome in enumerate(outcomes)}
    pending = [score_outcomes(outcomes, logits)]
    parts, seconds = [], []
    for each in drafts:
        parts.append([outcomes[rows[request]] for request in each.ready])
        start, head = time.perf_counter(), each.batch.draft_head
        if head is not None:
            own = logits.select([rows[request] for request in each.ready])
            pending.append(head.predict_after(parts[-1], own, each.batch.num_head_tokens))
        seconds.append(each.draft_seconds + time.perf_counter() - start)
    start = time.perf_counter()
    logprobs, *trees = finish(pending)
    waited, predicted = time.perf_counter() - start, iter(trees)
    results = []
    for each, own_outcomes, taken in zip(drafts, parts, seconds, strict=True):
        top_k, head_drafts = each.top_k, repeat(None)
        if each.batch.draft_head is not None:
            head_drafts, taken = next(predicted), taken + waited / len(trees)
        for outcome, head_draft in zip(own_outcomes, head_drafts, strict=False):
            _complete(outcome, top_k, logprobs[rows[outcome.request]], head_draft)
        results.append(BatchResult(each.batch, own_outcomes, taken))
    return results


def _complete(
    outcome: Outcome,
    top_k: int,
    logprobs: list[dict[int, float]] | None,
    head_draft: DraftTree | None,
) -> None:
    """Complete an outcome with the values that the drafter and the request need.

    Args:
        outcome: Outcome to update.
        top_k: Number of the target's most likely tokens that the drafter needs per node; 0 for
            none.
        logprobs: Log-probabilities of the new tokens, if the request asks for them.
        head_draft: Draft tree from the draft head, if the drafter requested one.
    """
    top = outcome.target_top
    if top is not None and top.token_ids.shape[1] != top_k:
        outcome.target_top = top.first(top_k) if top_k else None
    if logprobs is not None:
        outcome.logprobs = logprobs
    outcome.head_draft = head_draft
