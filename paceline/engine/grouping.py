"""Which requests step together."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

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
