"""Which requests step together, and with which drafters."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

from paceline.engine.budget import node_limit
from paceline.engine.drafting import Drafting, Part
from paceline.engine.model import CachedLM
from paceline.engine.ticket import Ticket

_MOST_SCORED = 512  # rows of a forward that have logits: each takes memory for all tokens of the vocabulary


def prompts_together(prompts: ListLike[Ticket], chunk: int, most_rows: int | None = None, packed: bool = False) -> list[Ticket]:
    """Return the prompt whose turn it is, and others beside it in the cache that fit one forward with little padding.

    Args:
        prompts: one or more. chunk: most pending tokens a sequence feeds.
        most_rows: of tokens and padding in one forward; None = any number.
        packed: there is no padding.
    """
    first = min(prompts, key=lambda ticket: ticket.rank)
    beside = {ticket.seq.slot: ticket for ticket in prompts}
    group = [first]
    (widest,) = fed_by(group, chunk)
    total = widest
    while (ticket := beside.get(group[-1].seq.slot + 1)) is not None:
        (width,) = fed_by([ticket], chunk)
        widest, total = max(widest, width), total + width
        rows = total if packed else widest * (len(group) + 1)
        if first.seq.scoring or ticket.seq.scoring:
            most_rows = _MOST_SCORED if most_rows is None else min(most_rows, _MOST_SCORED)
        if rows > 1.25 * total or (most_rows is not None and rows > most_rows):
            break
        group.append(ticket)
    return group


def fed_by(group: ListLike[Ticket], chunk: int) -> list[int]:
    """Return the pending tokens each of a group feeds in its next forward."""
    return [min(ticket.seq.pending, chunk) for ticket in group]


def parts_of(group: ListLike[Ticket], model: CachedLM, max_nodes: int, most_rows: int | None = None) -> list[Part]:
    """Return the requests of a group by their drafters, each with the largest tree it may have in their common step.

    Args:
        max_nodes: most nodes of any tree. most_rows: as for `next_group`.
    """
    if most_rows is not None:
        max_nodes = max(0, min(max_nodes, most_rows // len(group) - max(fed_by(group, model.prefill_chunk))))
    drafting = sum(model.reaches_end(ticket.seq) for ticket in group)
    parts: dict[Drafting, Part] = {}
    limits: dict[Drafting, int] = {}
    left: dict[Drafting, int] = {}  # sequences that may have drafts
    for ticket in group:
        mine, wanted = ticket.drafting, ticket.seq.params.max_nodes
        if mine not in parts:
            parts[mine] = Part(mine, [], [])
            limits[mine] = node_limit(mine.drafter.node_rule, drafting, max_nodes)
            left[mine] = len(group) if mine.worth is None else mine.worth.gate.admits(len(group), model.packs)
        limit = limits[mine]
        if not left[mine] and not mine.drafter.draws(ticket.seq):
            limit = 0
        left[mine] -= left[mine] > 0 and model.reaches_end(ticket.seq)
        parts[mine].seqs.append(ticket.seq)
        parts[mine].max_nodes.append(limit if wanted is None else min(wanted, limit))
    return list(parts.values())
