"""Run one decode step: propose, forward pass, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence

import torch

from paceline.core.drafter import Drafter, Outcome, assert_tokens_unchanged
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.drafter_state import DrafterBatch, DrafterState
from paceline.model.cached_lm import CachedLM
from paceline.model.node_logits import NodeLogits
from paceline.model.rotary import start_anew, within
from paceline.verification.logprobs import score_prompts
from paceline.verification.tree_rules import check_trees
from paceline.verification.verify import verify as verify_batch
from paceline.verification.verify import with_top_tokens

Verifier = Callable[[Sequence[Request], Sequence[DraftTree], NodeLogits], list[Outcome]]


def decode_step(
    model: CachedLM,
    drafter: Drafter,
    requests: Sequence[Request],
    max_nodes: list[int],
    verify: Verifier = verify_batch,
) -> list[Outcome]:
    """Advance every request by one forward pass of the target, all with one drafter.

    The target verifies the trees exactly as proposed, without a draft budget.

    Args:
        model: The target with its cache.
        drafter: The drafter of all requests.
        requests: The requests to advance.
        max_nodes: Per request, the largest tree that may be verified.
        verify: Verification rule that chooses the tokens.
    Raises:
        DrafterError: the drafter broke its contract.
    """
    batch = DrafterBatch(DrafterState(drafter, None), list(requests), max_nodes)
    run_step(model, [batch], verify)
    if batch.error is not None:
        raise batch.error
    return batch.outcomes


def run_step(
    model: CachedLM,
    batches: Sequence[DrafterBatch],
    verify: Verifier = verify_batch,
    draft_budget: DraftBudget | None = None,
) -> None:
    """Advance the requests of all drafter batches by one forward pass of the target.

    The outcomes are stored in the batches. A request with more pending tokens than a prefill chunk
    advances by one chunk and gets no outcome yet. If a drafter has raised an error, its requests
    are left out.

    Args:
        model: The target with its cache.
        batches: The requests, grouped by drafter.
        verify: Verification rule that chooses the tokens.
        spending: Draft budget that cuts the trees; None = verify them as proposed.
    """
    start = time.perf_counter()
    for batch in batches:
        if batch.error is None:
            _propose(model, batch)
    batches = [batch for batch in batches if batch.error is None]
    requests = (
        batches[0].requests
        if len(batches) == 1
        else sorted(
            (request for batch in batches for request in batch.requests),
            key=lambda request: request.slot,
        )
    )
    if not requests:
        return
    has_budget = any(batch.ready and batch.drafter_state.stats is not None for batch in batches)
    if draft_budget is not None and has_budget:
        pending = [min(request.pending, model.prefill_chunk) for request in requests]
        draft_budget.cut(
            batches,
            len(requests),
            sum(pending) if model.packs else len(requests) * max(pending),
            model.packs,
        )
    drafted = {
        request.id: tree
        for batch in batches
        for request, tree in zip(batch.ready, batch.trees, strict=True)
    }
    ready = [row for row, request in enumerate(requests) if request.id in drafted]
    trees = [drafted.get(request.id, EMPTY_TREE) for request in requests]

    has_head = any(batch.draft_head is not None for batch in batches)
    # A draft model that reads target states has none to record.
    records_states = not model.uses_target_states and any(
        request.states is not None for request in requests
    )
    layers = _layers(requests) if records_states else ()
    fed = (
        model.forward_with_states(requests, trees, layers, records_states)
        if has_head or records_states
        else model.forward_nodes(requests, trees)
    )
    if any(request.scoring for request in requests):
        fed = score_prompts(requests, fed, model.prefill_chunk)
    logits = fed.those(ready) if len(ready) < len(requests) else fed
    top_k = max(batch.drafter_state.drafter.top_k for batch in batches)
    if top_k and ready:
        logits = logits.with_top(top_k)
    outcomes = verify([requests[row] for row in ready], [trees[row] for row in ready], logits)
    again = {
        outcome.request: outcome.request.cached for outcome in outcomes if not outcome.new_token_ids
    }
    if again:
        rows = [row for row, outcome in enumerate(outcomes) if outcome.request not in again]
        outcomes, ready, logits = (
            [outcomes[row] for row in rows],
            [ready[row] for row in rows],
            logits.those(rows),
        )
        _leave_out(again, batches)
    _hand_out(outcomes, batches, logits)
    accepted: list[list[int]] = [[]] * len(requests)
    for row, outcome in zip(ready, outcomes, strict=True):
        accepted[row] = outcome.accepted
    if records_states:
        _keep_states(requests, fed, layers, accepted)
    model.commit(accepted)
    for request, cached in again.items():
        model.rewind(request, cached)
        model.clear_behind(request)
    for outcome in outcomes:
        if outcome.unclean:
            model.clear_behind(outcome.request)
        outcome.request.append(outcome.new_token_ids, outcome.logprobs or ())
        outcome.request.without_draft = False
        outcome.request.counters.drafted_tokens += len(outcome.tree)
        outcome.request.counters.accepted_tokens += len(outcome.accepted)
    for batch in batches:
        _observe(batch)
    if draft_budget is not None and has_budget and not again:
        draft_budget.observe(batches, time.perf_counter() - start)
    if (switch := model.architecture.restart_length) is not None:
        for outcome in outcomes:
            start_anew(outcome.request, switch)
    for batch in batches:
        batch.outcomes += [
            _ended(request)
            for request in batch.requests
            if request.fed_only and not request.pending
        ]


def _ended(request: Request) -> Outcome:
    request.finish_reason = "length"
    return Outcome(
        request, EMPTY_TREE, [], [], [], logprobs=None if request.params.logprobs is None else []
    )


def _layers(requests: Sequence[Request]) -> tuple[int, ...]:
    return tuple(
        sorted(
            {
                layer
                for request in requests
                if request.states is not None
                for layer in request.states.layers
            }
        )
    )


def _keep_states(
    requests: Sequence[Request],
    logits: NodeLogits,
    layers: tuple[int, ...],
    accepted: Sequence[Sequence[int]],
) -> None:
    """Store the hidden states of tokens that stay in the cache, before the commit.

    Args:
        requests: The requests of the forward pass.
        logits: Its result, with hidden states.
        layers: Layers whose states `logits` has.
        accepted: Accepted nodes per request.
    """
    assert logits.states is not None, "forward_with_states fills it"
    assert logits.pending is not None, "forward_with_states fills it"
    for request, start, pending, path in zip(
        requests, logits.starts, logits.pending, accepted, strict=True
    ):
        if request.states is not None:
            states = torch.cat(
                (pending, logits.states[[start, *(start + 1 + node for node in path)]])
            )
            if request.states.layers != layers:
                states = states[
                    :, [0, *(1 + layers.index(layer) for layer in request.states.layers)]
                ]
            request.states.write(request.cached, states)


def _propose(model: CachedLM, batch: DrafterBatch) -> None:
    """Let the drafter propose trees for the requests that are ready to decode."""
    batch.ready = [
        request for request in batch.requests if not request.fed_only and model.reaches_end(request)
    ]
    if not batch.ready:
        return
    limits = batch.max_nodes
    if len(batch.ready) < len(batch.requests):
        ready = {request.id for request in batch.ready}
        limits = [
            limit
            for request, limit in zip(batch.requests, limits, strict=True)
            if request.id in ready
        ]
    limits = [
        0 if request.without_draft else limit
        for request, limit in zip(batch.ready, limits, strict=True)
    ]
    drafter, before = batch.drafter_state.drafter, batch.drafter_state.drafter.forward_seconds
    try:
        with assert_tokens_unchanged(drafter, batch.ready):
            trees = drafter.propose(batch.ready, limits)
        check_trees(drafter, batch.ready, limits, trees, model.vocab_size)
        if (switch := model.architecture.restart_length) is not None:
            trees = [
                within(tree, request, switch)
                for tree, request in zip(trees, batch.ready, strict=True)
            ]
        batch.trees = trees if model.takes_trees else [tree.best_chain() for tree in trees]
    except Exception as error:
        batch.error = error
    batch.draft_seconds = drafter.forward_seconds - before


def _leave_out(again: Container[Request], batches: Sequence[DrafterBatch]) -> None:
    """Remove requests that must run again without a draft tree from the batches.

    The drafters learn nothing from this step.
    """
    for batch in batches:
        kept = [
            (request, tree)
            for request, tree in zip(batch.ready, batch.trees, strict=True)
            if request not in again
        ]
        for request in batch.ready:
            request.without_draft = request in again
        batch.ready, batch.trees = [request for request, _ in kept], [tree for _, tree in kept]
        batch.flat, batch.cost = None, 0.0


def _hand_out(outcomes: list[Outcome], batches: Sequence[DrafterBatch], logits: NodeLogits) -> None:
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
        own = logits.those(indices) if top_k or batch.draft_head is not None else logits
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
