"""Which requests step together, and with which drafters."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

from paceline.engine.budget import node_limit
from paceline.engine.drafting import Drafting, Part
from paceline.engine.model import CachedLM
from paceline.engine.ticket import Ticket


def next_group(active: list[Ticket], chunk: int, most_rows: int | None = None) -> list[Ticket]:
    """Return all decoding sequences, or, while there are prompts, the first of them that fit one forward with little padding.

    Args:
        active: in the order of their slots.
        chunk: most pending tokens a sequence feeds.
        most_rows: of tokens and padding in one forward; None = any number.
    """
    prompts = [ticket for ticket in active if len(ticket.seq.token_ids) == ticket.seq.prompt_length]
    if not prompts:
        return list(active)
    group = prompts[:1]
    (widest,) = fed_by(group, chunk)
    total = widest
    for ticket in prompts[1:]:
        (width,) = fed_by([ticket], chunk)
        widest, total = max(widest, width), total + width
        rows = widest * (len(group) + 1)
        adjacent = ticket.seq.slot == group[-1].seq.slot + 1
        if not adjacent or rows > 1.25 * total or (most_rows is not None and rows > most_rows):
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
    for ticket in group:
        mine, wanted = ticket.drafting, ticket.seq.params.max_nodes
        if mine not in parts:
            parts[mine] = Part(mine, [], [])
            closed = mine.worth is not None and not mine.worth.gate.opens()
            limits[mine] = 0 if closed else node_limit(mine.drafter.node_rule, drafting, max_nodes)
        parts[mine].seqs.append(ticket.seq)
        parts[mine].max_nodes.append(limits[mine] if wanted is None else min(wanted, limits[mine]))
    return list(parts.values())
