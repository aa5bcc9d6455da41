"""Which requests step together, and with which drafters."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.node_rule import node_limit
from paceline.draft_budget.drafter_state import DrafterBatch, DrafterState
from paceline.engine.request_handle import RequestHandle
from paceline.model.cached_lm import CachedLM

_MOST_SCORED = (
    512  # rows of a forward that have logits: each takes memory for all tokens of the vocabulary
)


def select_prompts(
    prompts: Sequence[RequestHandle], chunk: int, most_rows: int | None = None, packed: bool = False
) -> list[RequestHandle]:
    """Return the prompt whose turn it is, and others beside it in the cache that fit one forward
    with little padding.

    Args:
        prompts: one or more. chunk: most pending tokens a sequence feeds.
        most_rows: of tokens and padding in one forward; None = any number.
        packed: there is no padding.
    """
    first = min(prompts, key=lambda handle: handle.rank)
    beside = {handle.request.slot: handle for handle in prompts}
    group = [first]
    (widest,) = num_fed_tokens(group, chunk)
    total = widest
    while (handle := beside.get(group[-1].request.slot + 1)) is not None:
        (width,) = num_fed_tokens([handle], chunk)
        widest, total = max(widest, width), total + width
        rows = total if packed else widest * (len(group) + 1)
        if first.request.scoring or handle.request.scoring:
            most_rows = _MOST_SCORED if most_rows is None else min(most_rows, _MOST_SCORED)
        if rows > 1.25 * total or (most_rows is not None and rows > most_rows):
            break
        group.append(handle)
    return group


def num_fed_tokens(group: Sequence[RequestHandle], chunk: int) -> list[int]:
    """Return the pending tokens each of a group feeds in its next forward."""
    return [min(handle.request.pending, chunk) for handle in group]


def group_by_drafter(
    group: Sequence[RequestHandle], model: CachedLM, max_nodes: int, most_rows: int | None = None
) -> list[DrafterBatch]:
    """Return the requests of a group by their drafters, each with the largest tree it may have in
    their common step.

    Args:
        max_nodes: most nodes of any tree. most_rows: as for `next_group`.
    """
    if most_rows is not None:
        max_nodes = max(
            0,
            min(
                max_nodes, most_rows // len(group) - max(num_fed_tokens(group, model.prefill_chunk))
            ),
        )
    num_drafting = sum(model.reaches_end(handle.request) for handle in group)
    batches: dict[DrafterState, DrafterBatch] = {}
    limits: dict[DrafterState, int] = {}
    left: dict[DrafterState, int] = {}  # sequences that may have drafts
    for handle in group:
        mine, wanted = handle.drafter_state, handle.request.params.max_nodes
        if mine not in batches:
            batches[mine] = DrafterBatch(mine, [], [])
            limits[mine] = node_limit(mine.drafter.node_rule, num_drafting, max_nodes)
            left[mine] = (
                len(group)
                if mine.stats is None
                else mine.stats.gate.admits(len(group), model.packs)
            )
        limit = limits[mine]
        if not left[mine] and not mine.drafter.draws(handle.request):
            limit = 0
        left[mine] -= left[mine] > 0 and model.reaches_end(handle.request)
        batches[mine].requests.append(handle.request)
        batches[mine].max_nodes.append(limit if wanted is None else min(wanted, limit))
    return list(batches.values())
