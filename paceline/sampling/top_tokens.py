"""Find the most likely tokens in each row of a forward pass's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.backend.resolve import topk_tokens
from paceline.core.node_logits import NodeLogits, TopLogits
from paceline.core.tree import IntArray
from paceline.util.device_copies import select_rows


def find_top_tokens(
    logits: NodeLogits, count: int, vocabulary_ids: IntArray | None = None
) -> NodeLogits:
    """Add the `count` most likely tokens of each row to a forward pass's logits.

    If the forward pass has already found them, the function returns the logits unchanged.

    Args:
        logits: Logits of a forward pass.
        count: Number of tokens per row, at least 1.
        vocabulary_ids: Token id of each column of the logits. None means that column i is token i.
    """
    if _found(logits, count) is not None:
        return logits
    return replace(logits, top=TopLogits(*topk_tokens(logits.flat, count), vocabulary_ids))


def top_tokens_at(
    logits: NodeLogits,
    nodes: Sequence[Sequence[int]],
    count: int,
    vocabulary_ids: IntArray | None = None,
) -> TopLogits:
    """Return the `count` most likely tokens after some nodes of each request.

    Args:
        logits: Logits of a forward pass.
        nodes: For each request, the nodes whose next tokens are wanted: 0 is the newest token, and
            1 + i is draft node i.
        count: Number of tokens per node, at least 1.
        vocabulary_ids: Token id of each column of the logits. None means that column i is token i.
    """
    rows = [start + node for start, own in zip(logits.starts, nodes, strict=True) for node in own]
    found = _found(logits, count)
    if found is not None:
        return found.rows(lambda tensor: select_rows(tensor, rows))
    return TopLogits(*topk_tokens(select_rows(logits.flat, rows), count), vocabulary_ids)


def _found(logits: NodeLogits, count: int) -> TopLogits | None:
    """Return the forward pass's top tokens; None if it did not find `count` per row."""
    found = logits.top
    if found is None or found.columns.shape[-1] != min(count, logits.flat.shape[-1]):
        return None
    return found
