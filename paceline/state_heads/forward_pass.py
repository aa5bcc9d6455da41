"""Arrange the tokens of several texts for one forward pass of a draft head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.tree import IntArray
from paceline.kv_cache.slot_cache import SlotCache
from paceline.state_heads.text import HeadNode, HeadText
from paceline.util.device_copies import upload


@dataclass(frozen=True, slots=True)
class HeadRow:
    """The tokens of one text that a forward pass of a draft head processes.

    Attributes:
        text: Text to which the tokens belong.
        token_ids: Token ids, [n].
        states: Hidden states that the head reads together with the tokens, [n, hidden].
        positions: Text positions of the tokens, [n].
        cache_positions: Consecutive positions of the tokens in the cache slot, [n].
        visible: Whether each token attends to each cache position, bool [n, cache positions].
    """

    text: HeadText
    token_ids: Sequence[int]
    states: Tensor
    positions: IntArray
    cache_positions: IntArray
    visible: np.ndarray

    @staticmethod
    def of_text(
        text: HeadText, token_ids: Sequence[int], states: Tensor, window: int | None = None
    ) -> HeadRow:
        """Build the row that appends tokens to a text.

        Args:
            text: Text to extend.
            token_ids: Ids of the new tokens, [n].
            states: Hidden states that the head reads together with the tokens, [n, hidden].
            window: Maximum number of positions that a token attends to, including its own; None
                means no limit.
        """
        own = np.arange(text.length, text.length + len(token_ids))
        cached = np.arange(text.length + len(token_ids))
        visible = cached <= own[:, None]
        if window is not None:
            visible &= cached > own[:, None] - window
        return HeadRow(text, token_ids, states, own + text.first, own, visible)

    @staticmethod
    def of_nodes(
        text: HeadText, nodes: Sequence[HeadNode], states: Tensor, window: int | None = None
    ) -> HeadRow:
        """Build the row that adds draft nodes after a text.

        The method also adds the cache offsets of the nodes to `text.offsets`.

        Args:
            text: Text to which the nodes belong.
            nodes: The n draft nodes to process.
            states: Hidden states that the head reads together with the nodes, [n, hidden].
            window: Maximum number of positions that a token attends to, including its own; None
                means no limit.
        """
        begin = len(text.offsets)
        text.offsets.update({node.node: begin + index for index, node in enumerate(nodes)})
        visible = np.zeros((len(nodes), text.length + len(text.offsets)), dtype=np.bool_)
        visible[:, : text.length] = True
        for index, node in enumerate(nodes):
            if window is not None:
                visible[index, : max(0, text.length + node.depth - window)] = False
            visible[index, [text.length + text.offsets[above] for above in node.path]] = True
        depths = np.array([node.depth for node in nodes], dtype=np.int64)
        own = text.length + np.arange(begin, begin + len(nodes))
        token_ids = [node.token for node in nodes]
        return HeadRow(text, token_ids, states, text.end - 1 + depths, own, visible)


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """The inputs of a draft head's forward pass, with one row per cache slot.

    Attributes:
        token_ids: Token ids, [slots, columns].
        states: Hidden states, [slots, columns, hidden].
        positions: Text positions, [slots, columns].
        mask: Mask to add to the attention scores, [slots, 1, columns, cache positions].
    """

    token_ids: Tensor
    states: Tensor
    positions: Tensor
    mask: Tensor


def lay_out(
    rows: Sequence[HeadRow],
    cache: SlotCache,
    texts: Mapping[int, HeadText],
    dtype: torch.dtype,
    columns: int | None = None,
) -> HeadBatch:
    """Build the inputs of a forward pass, and prepare the cache for the pass.

    The pass covers all slots from the first to the last slot in `rows`. Slots without a row, and
    columns after the end of a row, write to unused cache positions.

    Args:
        rows: Tokens of each text.
        cache: KV cache of the head. The function sets the positions that the pass writes to.
        texts: All open texts, by slot.
        dtype: Dtype of the states and the mask.
        columns: Number of columns; by default, the length of the longest row.
    """
    first, last = min(row.text.slot for row in rows), max(row.text.slot for row in rows)
    width = max(len(row.token_ids) for row in rows) if columns is None else columns
    ends = np.zeros(last + 1 - first, dtype=np.int64)
    for slot in range(first, last + 1):
        if slot in texts:
            ends[slot - first] = texts[slot].length + len(texts[slot].offsets)
    written = ends[:, None] + np.arange(width)
    token_ids = np.zeros_like(written)
    positions = np.zeros_like(written)
    for row in rows:
        index, count = row.text.slot - first, len(row.token_ids)
        token_ids[index, :count], positions[index, :count] = row.token_ids, row.positions
        written[index] = row.cache_positions[0] + np.arange(width)
    slots = first + np.arange(len(written))[:, None]
    cache.begin(first, len(written), slots, written, True)
    seen = written[:, :, None] == np.arange(int(written.max()) + 1)
    for row in rows:
        count, visible = row.visible.shape
        seen[row.text.slot - first, :count, :visible] |= row.visible
    states = rows[0].states.new_zeros(len(written), width, rows[0].states.shape[-1])
    for row in rows:
        states[row.text.slot - first, : len(row.token_ids)] = row.states
    ids, text_positions, mask = upload(states.device, token_ids, positions, seen)
    hidden = torch.zeros(mask.shape, dtype=dtype, device=states.device)
    hidden.masked_fill_(~mask, torch.finfo(dtype).min)
    return HeadBatch(ids, states.to(dtype), text_positions, hidden[:, None])


def outputs_of(rows: Sequence[HeadRow], outputs: Tensor) -> list[Tensor]:
    """Extract the outputs of each row, [n, hidden], from the outputs of a batch."""
    first = min(row.text.slot for row in rows)
    return [outputs[row.text.slot - first, : len(row.token_ids)] for row in rows]
