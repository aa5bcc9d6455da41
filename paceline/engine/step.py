"""Run one decode step: propose, forward pass, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.core.drafter import Drafter, Outcome, assert_tokens_unchanged
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.target import Target
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.draft_budget.drafter_state import DrafterBatch, DrafterState
from paceline.engine.state_recording import record_states, recorded_layers
from paceline.sampling.top_tokens import find_top_tokens
from paceline.verification.logprobs import score_prompts
from paceline.verification.tree_rules import check_trees
from paceline.verification.verify import verify as verify_batch
from paceline.verification.verify import with_top_tokens

if TYPE_CHECKING:
    from paceline.draft_budget.budget import DraftBudget

Verifier = Callable[[Sequence[Request], Sequence[DraftTree], NodeLogits], list[Outcome]]


def decode_step(
    model: Target,
    drafter: Drafter,
    requests: Sequence[Request],
    max_nodes: list[int],
    verify: Verifier = verify_batch,
    reduced_logits: bool = False,
) -> list[Outcome]:
    """Advance every request by one forward pass of the target, all with one drafter.

    The target verifies the trees exactly as proposed, without a draft budget.

    Args:
        model: The target with its cache.
        drafter: The drafter of all requests.
        requests: The requests to advance.
        max_nodes: Per request, the largest tree that may be verified.
        verify: Verification rule that chooses the tokens.
        reduced_logits: True if it chooses from logits of a reduced vocabulary alone, see
            `CachedLM.forward_nodes`; default False.
    Raises:
        DrafterError: the drafter broke its contract.
    """
    batch = DrafterBatch(DrafterState(drafter, None), list(requests), max_nodes)
    run_step(model, [batch], verify, reduced_logits=reduced_logits)
    if batch.error is not None:
        raise batch.error
    return batch.outcomes


def run_step(
    model: Target,
    batches: Sequence[DrafterBatch],
    verify: Verifier = verify_batch,
    draft_budget: DraftBudget | None = None,
    prefill_chunk: int | None = None,
    reduced_logits: bool = False,
) -> None:
    """Advance the requests of all drafter batches by one forward pass of the target.

    The outcomes are stored in the batches. A request with more pending tokens than a prefill chunk
    advances by one chunk and gets no outcome yet. If a drafter has raised an error, its requests
    are left out.

    Args:
        model: The target with its cache.
        batches: The requests, grouped by drafter.
        verify: Verification rule that chooses the tokens.
        draft_budget: Draft budget that cuts the trees; None = verify them as proposed.
        prefill_chunk: Most pending tokens of a request; None = `prefill_chunk` of the model.
        reduced_logits: As in `decode_step`.
    """
    start = time.perf_counter()
    chunk = model.prefill_chunk if prefill_chunk is None else prefill_chunk
    for batch in batches:
        if batch.error is None:
            _propose(model, batch, chunk)
    batches = [batch for batch in batches if batch.error is None]
    requests = _in_slot_order(batches)
    if not requests:
        return
    if not any(batch.ready and batch.drafter_state.stats is not None for batch in batches):
        draft_budget = None
    if draft_budget is not None:
        _cut(draft_budget, model, batches, requests, chunk)
    drafted = {
        request.id: tree
        for batch in batches
        for request, tree in zip(batch.ready, batch.trees, strict=True)
    }
    ready = [row for row, request in enumerate(requests) if request.id in drafted]
    trees = [drafted.get(request.id, EMPTY_TREE) for request in requests]

    all_logits, layers = _forward(model, batches, requests, trees, chunk, reduced_logits)
    logits = all_logits.select(ready) if len(ready) < len(requests) else all_logits
    top_k = max(batch.drafter_state.drafter.top_k for batch in batches)
    if top_k and ready:
        logits = find_top_tokens(logits, top_k)
    outcomes = verify([requests[row] for row in ready], [trees[row] for row in ready], logits)
    # NaN logits of a draft node may have spoiled these requests: they run again without a tree.
    retries = {
        outcome.request: outcome.request.cached for outcome in outcomes if not outcome.new_token_ids
    }
    if retries:
        rows = [row for row, outcome in enumerate(outcomes) if outcome.request not in retries]
        outcomes, ready = [outcomes[row] for row in rows], [ready[row] for row in rows]
        logits = logits.select(rows)
        _drop_retries(retries, batches)
    _distribute(outcomes, batches, logits)
    accepted: list[list[int]] = [[]] * len(requests)
    for row, outcome in zip(ready, outcomes, strict=True):
        accepted[row] = outcome.accepted
    if layers is not None:
        record_states(requests, all_logits, layers, accepted)
    model.commit(accepted)
    _rewind(model, retries)
    _append(model, outcomes)
    for batch in batches:
        _observe(batch)
    if draft_budget is not None and not retries:
        draft_budget.observe(batches, time.perf_counter() - start)
    for outcome in outcomes:
        model.restart_if_due(outcome.request)
    _end_scored(batches)


def _in_slot_order(batches: Sequence[DrafterBatch]) -> list[Request]:
    if len(batches) == 1:
        return batches[0].requests
    requests = (request for batch in batches for request in batch.requests)
    return sorted(requests, key=lambda request: request.slot)


def _cut(
    draft_budget: DraftBudget,
    model: Target,
    batches: Sequence[DrafterBatch],
    requests: Sequence[Request],
    chunk: int,
) -> None:
    pending = [min(request.pending, chunk) for request in requests]
    rows = sum(pending) if model.packs else len(requests) * max(pending)
    draft_budget.cut(batches, len(requests), rows, model.packs)


def _forward(
    model: Target,
    batches: Sequence[DrafterBatch],
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    chunk: int,
    reduced_logits: bool,
) -> tuple[NodeLogits, tuple[int, ...] | None]:
    """Run the target over the pending tokens and the draft trees.

    Returns:
        Logits of all requests; layers whose states are recorded, None if no request records any.
    """
    # A draft model that reads target states has none to record.
    records_states = not model.uses_target_states and any(
        request.states is not None for request in requests
    )
    layers = recorded_layers(requests) if records_states else None
    if records_states or any(batch.draft_head is not None for batch in batches):
        logits = model.forward_with_states(
            requests, trees, layers or (), records_states, chunk, reduced_logits
        )
    else:
        logits = model.forward_nodes(requests, trees, chunk, reduced_logits)
    if any(request.scoring for request in requests):
        logits = score_prompts(requests, logits, chunk)
    return logits, layers


def _rewind(model: Target, retries: Mapping[Request, int]) -> None:
    """Drop the tokens of this step from the cache, for requests that run again.

    Args:
        model: The target.
        retries: Number of cached tokens before the step, per request.
    """
    for request, cached in retries.items():
        model.rewind(request, cached)
        model.clear_behind(request)


def _append(model: Target, outcomes: Sequence[Outcome]) -> None:
    """Append the new tokens to their requests."""
    for outcome in outcomes:
        request = outcome.request
        if outcome.unclean:
            model.clear_behind(request)
        request.append(outcome.new_token_ids, outcome.logprobs or ())
        request.without_draft = False
        request.counters.drafted_tokens += len(outcome.tree)
        request.counters.accepted_tokens += len(outcome.accepted)


def _end_scored(batches: Sequence[DrafterBatch]) -> None:
    """End requests that only feed their prompt, once all of it is cached."""
    for batch in batches:
        for request in batch.requests:
            if request.fed_only and not request.pending:
                request.finish_reason = "length"
                logprobs: list[dict[int, float]] | None = (
                    None if request.params.logprobs is None else []
                )
                batch.outcomes.append(Outcome(request, EMPTY_TREE, [], [], [], logprobs=logprobs))


def _propose(model: Target, batch: DrafterBatch, chunk: int) -> None:
    """Let the drafter propose trees for the requests that are ready to decode."""
    ready = [
        (request, 0 if request.without_draft else limit)
        for request, limit in zip(batch.requests, batch.max_nodes, strict=True)
        if not request.fed_only and request.ends_prefill(chunk)
    ]
    if not ready:
        return
    batch.ready, limits = [request for request, _ in ready], [limit for _, limit in ready]
    drafter, before = batch.drafter_state.drafter, batch.drafter_state.drafter.forward_seconds
    try:
        with assert_tokens_unchanged(drafter, batch.ready):
            trees = drafter.propose(batch.ready, limits)
        check_trees(drafter, batch.ready, limits, trees, model.vocab_size)
        batch.trees = list(map(model.limit_tree, trees, batch.ready))
    except Exception as error:
        batch.error = error
    batch.draft_seconds = drafter.forward_seconds - before


def _drop_retries(retries: Container[Request], batches: Sequence[DrafterBatch]) -> None:
    """Remove requests that run again without a draft tree from the batches.

    The drafters observe no outcome of this step for them.
    """
    for batch in batches:
        finished = [
            (request, tree)
            for request, tree in zip(batch.ready, batch.trees, strict=True)
            if request not in retries
        ]
        for request in batch.ready:
            if request in retries:
                request.without_draft = True
        batch.ready = [request for request, _ in finished]
        batch.trees = [tree for _, tree in finished]
        batch.flat, batch.cost = None, 0.0


def _distribute(
    outcomes: list[Outcome], batches: Sequence[DrafterBatch], logits: NodeLogits
) -> None:
    """Give every drafter batch its outcomes, with top tokens and head drafts."""
    rows = (
        {outcome.request.id: row for row, outcome in enumerate(outcomes)}
        if len(batches) > 1
        else {}
    )
    for batch in batches:
        indices = [rows[request.id] for request in batch.ready] if rows else range(len(outcomes))
        batch.outcomes = [outcomes[row] for row in indices]
        top_k = batch.drafter_state.drafter.top_k
        own = logits.select(indices) if top_k or batch.draft_head is not None else logits
        if top_k:
            batch.outcomes = with_top_tokens(batch.outcomes, own, top_k)
        if batch.draft_head is not None:
            start = time.perf_counter()
            batch.outcomes = batch.draft_head.add_to(batch.outcomes, own, batch.num_head_tokens)
            batch.draft_seconds += time.perf_counter() - start


def _observe(batch: DrafterBatch) -> None:
    if batch.outcomes:
        try:
            with assert_tokens_unchanged(batch.drafter_state.drafter, batch.ready):
                batch.drafter_state.drafter.observe(batch.outcomes)
        except Exception as error:
            batch.error = error
