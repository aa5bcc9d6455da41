"""Find the most likely tokens in each row of a forward pass's logits."""

from __future__ import annotations

from dataclasses import replace

from paceline.backend.resolve import topk_tokens
from paceline.core.node_logits import NodeLogits, TopLogits
from paceline.core.tree import IntArray


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
    count = min(count, logits.flat.shape[-1])
    if logits.top is not None and logits.top.columns.shape[-1] == count:
        return logits
    return replace(logits, top=TopLogits(*topk_tokens(logits.flat, count), vocabulary_ids))
