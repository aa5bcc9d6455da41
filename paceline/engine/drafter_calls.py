"""Call the drafters in a decode step, check their trees, and keep their errors."""

from __future__ import annotations

from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING

from paceline.core.drafter import check_tokens, copied_tokens
from paceline.core.request import Request
from paceline.draft_budget.drafts import DrafterBatch, Drafts
from paceline.engine.batch_result import BatchResult
from paceline.verification.tree_rules import check_trees

if TYPE_CHECKING:
    from paceline.core.target import Target


def propose_trees(model: Target, batch: DrafterBatch, chunk: int) -> Drafts | BatchResult:
    """Propose draft trees for the requests in a batch that are ready to decode.

    Args:
        model: Target model, which may limit the trees.
        batch: Requests with the same drafter.
        chunk: Maximum number of pending tokens per request in one forward pass.
    Returns:
        The drafts, or a result with the error that the drafter raised.
    """
    ready: list[Request] = []
    max_nodes: list[int] = []
    for request, limit in zip(batch.requests, batch.max_nodes, strict=True):
        if not request.prefill_only and request.ends_prefill(chunk):
            ready.append(request)
            max_nodes.append(0 if request.without_draft else limit)
    if not ready:
        return Drafts(batch, [], [])
    drafter = batch.drafter_state.drafter
    before = drafter.forward_seconds
    try:
        tokens = copied_tokens(drafter, ready)
        trees = drafter.propose(ready, max_nodes)
        check_tokens(drafter, ready, tokens)
        flat = check_trees(drafter, ready, max_nodes, trees, model.vocab_size)
        limited = list(map(model.limit_tree, trees, ready))
        flat = flat if all(map(is_, limited, trees)) else None
    except Exception as error:
        return BatchResult(batch, [], drafter.forward_seconds - before, error)
    return Drafts(batch, ready, limited, drafter.forward_seconds - before, flat)


def observe_outcomes(result: BatchResult) -> BatchResult:
    """Pass the outcomes to their drafter; add its error, if any, to the result.

    Args:
        result: Outcomes of the requests with one drafter.
    """
    if not result.outcomes:
        return result
    drafter = result.batch.drafter_state.drafter
    requests = [outcome.request for outcome in result.outcomes]
    try:
        tokens = copied_tokens(drafter, requests)
        drafter.observe(result.outcomes)
        check_tokens(drafter, requests, tokens)
    except Exception as error:
        return replace(result, error=error)
    return result
