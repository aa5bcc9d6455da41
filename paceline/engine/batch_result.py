"""Define a step's result per drafter, and distribute outcomes to drafters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.draft_budget.drafts import DrafterBatch, Drafts
from paceline.util.device_copies import finish
from paceline.verification.logprobs import score_outcomes


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
    outcomes: Sequence[Outcome], drafts: Sequence[Drafts], logits: NodeLogits
) -> list[BatchResult]:
    """Return the outcomes by drafter, with what only some requests or drafters need.

    These are log-probabilities, top tokens and the trees of draft heads. One copy brings them from
    the device.

    Args:
        outcomes: Outcomes in a step.
        drafts: Drafts of each drafter.
        logits: Logits with rows in the order of `outcomes`.
    """
    rows = {outcome.request: row for row, outcome in enumerate(outcomes)}
    pending = [score_outcomes(outcomes, logits)]
    parts, seconds = [], []
    for each in drafts:
        indices = [rows[request] for request in each.ready]
        top_k = each.state.drafter.top_k
        parts.append([_with_top_k(outcomes[row], top_k) for row in indices])
        start, head = time.perf_counter(), each.batch.draft_head
        if head is not None:
            own = logits.select(indices)
            pending.append(head.predict_after(parts[-1], own, each.batch.num_head_tokens))
        seconds.append(each.draft_seconds + time.perf_counter() - start)
    start = time.perf_counter()
    logprobs, *trees = finish(pending)
    waited, predicted = time.perf_counter() - start, iter(trees)
    results = []
    for each, own_outcomes, taken in zip(drafts, parts, seconds, strict=True):
        scored = [_with_logprobs(one, logprobs[rows[one.request]]) for one in own_outcomes]
        if each.batch.draft_head is not None:
            scored = [
                replace(outcome, head_draft=tree)
                for outcome, tree in zip(scored, next(predicted), strict=True)
            ]
            taken += waited / len(trees)
        results.append(BatchResult(each.batch, scored, taken))
    return results


def _with_top_k(outcome: Outcome, count: int) -> Outcome:
    """Return an outcome with as many top tokens as its drafter wants."""
    top = outcome.target_top
    if top is None or top.token_ids.shape[1] == count:
        return outcome
    return replace(outcome, target_top=top.first(count) if count else None)


def _with_logprobs(outcome: Outcome, logprobs: list[dict[int, float]] | None) -> Outcome:
    return outcome if logprobs is None else replace(outcome, logprobs=logprobs)
