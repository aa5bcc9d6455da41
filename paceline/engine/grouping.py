"""Choose the requests that share a step, and group them by drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.node_rule import node_limit
from paceline.draft_budget.drafts import DrafterBatch, DrafterState
from paceline.engine.request_handle import RequestHandle
from paceline.engine.settings import MAX_PADDING_RATIO, MAX_SCORED_ROWS

if TYPE_CHECKING:
    from paceline.core.target import Target


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The requests that share a step.

    Attributes:
        handles: The requests, in the order of their slots.
        prefill_chunk: Maximum number of pending tokens that the step processes per request.
    """

    handles: list[RequestHandle]
    prefill_chunk: int

    @property
    def num_pending(self) -> list[int]:
        """Return the number of pending tokens that the step processes for each request."""
        return [num_pending(handle, self.prefill_chunk) for handle in self.handles]

    @property
    def num_drafting(self) -> int:
        """Return the number of requests for which the step may verify drafts.

        If the step does not finish a request's prompt, the request has no draft.
        """
        return sum(handle.request.ends_prefill(self.prefill_chunk) for handle in self.handles)


def num_pending(handle: RequestHandle, prefill_chunk: int) -> int:
    """Return the number of a request's pending tokens that the step processes.

    Args:
        handle: Handle of the request.
        prefill_chunk: Maximum number of pending tokens that the step processes per request.
    """
    return min(handle.request.pending, prefill_chunk)


def select_prompts(
    prompts: Sequence[RequestHandle],
    prefill_chunk: int,
    max_rows: int | None = None,
    packed: bool = False,
) -> list[RequestHandle]:
    """Choose the prompts that the next forward pass processes together.

    The first prompt is chosen by priority and age. The function adds the prompts in the following
    cache slots, as long as they need little padding and the forward pass stays within the row
    limit.

    Args:
        prompts: Requests in prefill; at least one.
        prefill_chunk: Maximum number of a request's pending tokens in the forward pass.
        max_rows: Maximum number of rows in the forward pass, including padding; None means no
            limit.
        packed: Whether the forward pass needs no padding.
    """
    first = min(prompts, key=lambda handle: handle.rank)
    by_slot = {handle.request.slot: handle for handle in prompts}
    group = [first]
    widest = total = num_pending(first, prefill_chunk)
    while (handle := by_slot.get(group[-1].request.slot + 1)) is not None:
        width = num_pending(handle, prefill_chunk)
        widest, total = max(widest, width), total + width
        rows = total if packed else widest * (len(group) + 1)
        if first.request.scoring or handle.request.scoring:
            max_rows = MAX_SCORED_ROWS if max_rows is None else min(max_rows, MAX_SCORED_ROWS)
        if rows > MAX_PADDING_RATIO * total or (max_rows is not None and rows > max_rows):
            break
        group.append(handle)
    return group


def group_by_drafter(
    group: StepGroup, model: Target, max_nodes: int, max_rows: int | None = None
) -> list[DrafterBatch]:
    """Group a step's requests by drafter, and set a node limit for each request.

    Args:
        group: The requests in the step.
        model: Target model.
        max_nodes: Maximum number of nodes in any draft tree.
        max_rows: Maximum number of rows in the forward pass, including padding; None means no
            limit.
    """
    size = len(group.handles)
    if max_rows is not None:
        max_nodes = max(0, min(max_nodes, max_rows // size - max(group.num_pending)))
    num_drafting = group.num_drafting
    batches: dict[DrafterState, DrafterBatch] = {}
    limits: dict[DrafterState, int] = {}
    admitted: dict[DrafterState, int] = {}  # number of requests that may still draft
    for handle in group.handles:
        state, requested = handle.drafter_state, handle.request.params.max_nodes
        if state not in batches:
            batches[state] = DrafterBatch(state, [], [])
            limits[state] = node_limit(state.drafter.node_rule, num_drafting, max_nodes)
            admitted[state] = (
                size if state.stats is None else state.stats.gate.admits(size, model.packs)
            )
        limit = limits[state]
        if not admitted[state] and not state.drafter.draws(handle.request):
            limit = 0
        admitted[state] -= admitted[state] > 0 and handle.request.ends_prefill(group.prefill_chunk)
        batches[state].requests.append(handle.request)
        batches[state].max_nodes.append(limit if requested is None else min(requested, limit))
    return list(batches.values())
