"""Run one decode step: propose, run the forward pass, verify, commit, observe.

The forward pass processes the requests of all drafters together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.draft_budget.drafts import DrafterBatch, DrafterState, Drafts
from paceline.engine.batch_result import BatchResult, distribute_outcomes
from paceline.engine.drafter_calls import observe_outcomes, propose_trees
from paceline.engine.state_recording import record_states, recorded_layers
from paceline.sampling.sampler import is_greedy
from paceline.sampling.top_tokens import find_top_tokens
from paceline.verification.logprobs import score_prompts
from paceline.verification.verify import verify as verify_batch

if TYPE_CHECKING:
    from paceline.core.target import Target
    from paceline.draft_budget.budget import DraftBudget
    from paceline.draft_budget.budgeted_drafts import BudgetedDrafts

Verifier = Callable[[Sequence[Request], Sequence[DraftTree], NodeLogits], list[Outcome]]


def decode_step(
    model: Target,
    drafter: Drafter,
    requests: Sequence[Request],
    max_nodes: list[int],
    verify: Verifier = verify_batch,
    reduced_logits: bool = False,
) -> list[Outcome]:
    """Run one target forward pass for requests with the same drafter.

    The target verifies the trees exactly as proposed, without a draft budget.

    Args:
        model: Target model with its cache.
        drafter: Drafter for all requests.
        requests: Requests to advance.
        max_nodes: For each request, the maximum number of nodes that may be verified.
        verify: Verification rule that chooses the tokens.
        reduced_logits: Whether logits over a reduced vocabulary suffice for the rule; see
            `CachedLM.forward_nodes`.
    Raises:
        DrafterError: The drafter broke its contract.
    """
    batch = DrafterBatch(DrafterState(drafter, None), list(requests), max_nodes)
    (result,) = run_step(model, [batch], verify, reduced_logits=reduced_logits)
    if result.error is not None:
        raise result.error
    return result.outcomes


def run_step(
    model: Target,
    batches: Sequence[DrafterBatch],
    verify: Verifier = verify_batch,
    draft_budget: DraftBudget | None = None,
    prefill_chunk: int | None = None,
    reduced_logits: bool = False,
) -> list[BatchResult]:
    """Advance the requests in all drafter batches by one target forward pass.

    A request with more pending tokens than a prefill chunk advances by one chunk, without an
    outcome. If a drafter raises an error, the step skips that drafter's requests.

    Args:
        model: Target model with its cache.
        batches: Requests grouped by drafter.
        verify: Verification rule that chooses the tokens.
        draft_budget: Draft budget that cuts the trees; None verifies the trees as proposed.
        prefill_chunk: Maximum number of pending tokens per request; None means the model's
            `prefill_chunk`.
        reduced_logits: Whether logits over a reduced vocabulary suffice for the rule; see
            `CachedLM.forward_nodes`.
    Returns:
        One result per batch; the results of failed drafters come first.
    """
    start = time.perf_counter()
    chunk = model.prefill_chunk if prefill_chunk is None else prefill_chunk
    proposals = [propose_trees(model, batch, chunk) for batch in batches]
    failed = [proposal for proposal in proposals if isinstance(proposal, BatchResult)]
    drafts = [proposal for proposal in proposals if isinstance(proposal, Drafts)]
    requests = _in_slot_order(drafts)
    if not requests:
        return failed
    cut: list[BudgetedDrafts] = []
    if draft_budget is not None and any(each.ready and each.state.stats for each in drafts):
        rows = _num_rows(model, requests, chunk)
        cut = draft_budget.cut(drafts, len(requests), rows, model.packs)
        drafts = [each.cut_drafts for each in cut]
    results, has_retries = _verify_drafts(model, drafts, requests, verify, chunk, reduced_logits)
    results = [observe_outcomes(result) for result in results]
    if draft_budget is not None and cut and not has_retries:
        draft_budget.observe(
            cut,
            [result.outcomes for result in results],
            sum(result.draft_seconds for result in results),
            time.perf_counter() - start,
        )
    for result in results:
        _end_step(model, result)
    return failed + results


def _end_step(model: Target, result: BatchResult) -> None:
    for outcome in result.outcomes:
        model.restart_if_due(outcome.request)
    result.outcomes.extend(_end_scored(result.batch))


def _in_slot_order(drafts: Sequence[Drafts]) -> list[Request]:
    if len(drafts) == 1:
        return drafts[0].batch.requests
    requests = (request for each in drafts for request in each.batch.requests)
    return sorted(requests, key=lambda request: request.slot)


def _num_rows(model: Target, requests: Sequence[Request], chunk: int) -> int:
    """Return the number of rows, with padding, in a forward pass without draft nodes."""
    pending = [min(request.pending, chunk) for request in requests]
    return sum(pending) if model.packs else len(requests) * max(pending)


def _trees_of(
    drafts: Sequence[Drafts], requests: Sequence[Request]
) -> tuple[list[DraftTree], list[int]]:
    """Return one tree per request, and the indices of the requests ready to decode."""
    if len(drafts) == 1 and len(drafts[0].ready) == len(requests):  # in the order of `requests`
        return list(drafts[0].trees), list(range(len(requests)))
    by_request = {
        request: tree
        for each in drafts
        for request, tree in zip(each.ready, each.trees, strict=True)
    }
    ready = [row for row, request in enumerate(requests) if request in by_request]
    return [by_request.get(request, EMPTY_TREE) for request in requests], ready


def _forward(
    model: Target,
    drafts: Sequence[Drafts],
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    chunk: int,
    reduced_logits: bool,
) -> tuple[NodeLogits, tuple[int, ...] | None]:
    """Run the target over the pending tokens and the draft trees.

    Returns:
        Logits for all requests, and the layers whose states are recorded (None if no request
        records any).
    """
    # A draft model that reads target states has no states to record.
    records_states = not model.uses_target_states and any(
        request.states is not None for request in requests
    )
    layers = recorded_layers(requests) if records_states else None
    # The most likely token suffices to verify greedy requests.
    num_top = max(each.top_k for each in drafts) or int(is_greedy(requests))
    if records_states or any(each.batch.draft_head is not None for each in drafts):
        logits = model.forward_with_states(
            requests, trees, layers or (), records_states, chunk, reduced_logits, num_top
        )
    else:
        logits = model.forward_nodes(requests, trees, chunk, reduced_logits, num_top)
    if any(request.scoring for request in requests):
        logits = score_prompts(requests, logits, chunk)
    return logits, layers


def _verify_drafts(
    model: Target,
    drafts: Sequence[Drafts],
    requests: Sequence[Request],
    verify: Verifier,
    chunk: int,
    reduced_logits: bool,
) -> tuple[list[BatchResult], bool]:
    """Run the target, choose new tokens, and commit them to the cache and requests.

    Returns:
        One result for each `Drafts`, and whether some requests must run again without a draft
        tree.
    """
    trees, ready = _trees_of(drafts, requests)
    all_logits, layers = _forward(model, drafts, requests, trees, chunk, reduced_logits)
    logits = all_logits.select(ready) if len(ready) < len(requests) else all_logits
    top_k = max(each.top_k for each in drafts)
    if top_k and ready:
        logits = find_top_tokens(logits, top_k)
    outcomes = verify([requests[row] for row in ready], [trees[row] for row in ready], logits)
    # NaN logits at a draft node may have corrupted these requests, so they run again without a
    # tree.
    retries = {
        outcome.request: outcome.request.cached for outcome in outcomes if not outcome.new_token_ids
    }
    if retries:
        rows_left = [row for row, outcome in enumerate(outcomes) if outcome.request not in retries]
        outcomes, ready = [outcomes[row] for row in rows_left], [ready[row] for row in rows_left]
        logits, drafts = logits.select(rows_left), _without_retries(drafts, retries)
    results = distribute_outcomes(outcomes, drafts, logits)
    accepted: list[list[int]] = [[]] * len(requests)
    for row, outcome in zip(ready, outcomes, strict=True):
        accepted[row] = outcome.accepted
    if layers is not None:
        record_states(requests, all_logits, layers, accepted)
    model.commit(accepted)
    for request, cached in retries.items():
        model.undo(request, cached)
    _append(model, [outcome for result in results for outcome in result.outcomes])
    return results, bool(retries)


def _without_retries(drafts: Sequence[Drafts], retries: Mapping[Request, int]) -> list[Drafts]:
    """Return the drafts without the requests in `retries`, which must run again.

    The function marks these requests, so that they run again without draft trees.
    """
    for request in retries:
        request.without_draft = True
    return [each.without(retries) for each in drafts]


def _append(model: Target, outcomes: Sequence[Outcome]) -> None:
    """Append the new tokens to their requests, and update the requests' counters."""
    for outcome in outcomes:
        request = outcome.request
        if outcome.unclean:
            model.clear_after(request)
        request.append(outcome.new_token_ids, outcome.logprobs or ())
        request.without_draft = False
        request.counters.drafted_tokens += len(outcome.tree)
        request.counters.accepted_tokens += len(outcome.accepted)


def _end_scored(batch: DrafterBatch) -> list[Outcome]:
    """End requests that need no answer, once their prompts are completely cached."""
    outcomes = []
    for request in batch.requests:
        if request.prefill_only and not request.pending:
            request.finish_reason = "length"
            logprobs: list[dict[int, float]] | None = (
                None if request.params.logprobs is None else []
            )
            outcomes.append(Outcome(request, EMPTY_TREE, [], [], [], logprobs=logprobs))
    return outcomes
