"""Describe the order in which recurrent mixers process a forward pass's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.tree import DraftTree, IntArray
from paceline.model.padded_batch import PaddedBatch
from paceline.model.ragged_batch import RaggedBatch


@dataclass(frozen=True, slots=True)
class RecurrentBatch:
    """Tokens of a forward pass, one row per request, in text order.

    A row consists of pending tokens, nodes and padding, in this order. Padding entries refer to the
    column of the newest pending token, and their results are not used. For example, a request has
    two pending tokens, two nodes below the root, and one node below the first of these:

        token      pending   pending (root)   node 0   node 1   node 2
        =======    =======   ==============   ======   ======   ======
        index      0         1                2        3        4
        parents    -1        0                1        1        2

    Attributes:
        slots: Slot of each request, [requests].
        pending: Number of pending tokens of each request, [requests]; at least 1.
        prompt: Number of each request's pending tokens that belong to the prompt, [requests].
        nodes: Number of tree nodes of each request, [requests].
        columns: Index of each token in the forward pass, as if its rows were joined end to end,
            [requests, width].
        parents: Index of each token's predecessor, counted within the row, [requests, width]; -1
            means that the token follows the stored state. Predecessors come before their
            successors.
        trees: Draft tree of each request.
        on_device: Arrays that `tensor` has already copied to a device, by name and device.
        derived: Values that mixers compute once per forward pass, by name or key.
    """

    slots: IntArray
    pending: IntArray
    prompt: IntArray
    nodes: IntArray
    columns: IntArray
    parents: IntArray
    trees: Sequence[DraftTree]
    on_device: dict[tuple[str, torch.device], Tensor] = field(default_factory=dict)
    derived: dict[Any, Any] = field(default_factory=dict)

    def tensor(self, name: str, device: torch.device) -> Tensor:
        """Return an array as a tensor on a device, copying it only once.

        Args:
            name: "slots", "pending", "prompt", "nodes", "columns" or "parents".
            device: Device of the tensor.
        """
        key = name, device
        if key not in self.on_device:
            array = torch.from_numpy(getattr(self, name))
            self.on_device[key] = array.to(device, non_blocking=True)
        return self.on_device[key]


def recurrent_batch(
    requests: Sequence[Request], trees: Sequence[DraftTree], layout: PaddedBatch | RaggedBatch
) -> RecurrentBatch:
    """Return the order in which recurrent layers process the tokens of a batch.

    Args:
        requests: Requests of the batch.
        trees: One draft tree per request.
        layout: Padded or ragged batch of the same requests and trees.
    """
    pending, nodes = layout.pending, layout.nodes
    rows = np.arange(len(requests), dtype=np.int64)
    if isinstance(layout, RaggedBatch):
        first = layout.starts[:-1]
    else:
        columns = layout.token_ids.shape[1]
        first = rows * columns + columns - layout.width - pending
    count = (pending + nodes)[:, None]
    offsets = np.arange(int(count.max()), dtype=np.int64)[None]
    newest = pending[:, None] - 1
    parents = np.where(offsets < pending[:, None], offsets - 1, newest)
    for row, tree in enumerate(trees):
        last = pending[row] - 1
        parents[row, last + 1 : last + 1 + len(tree)] += 1 + np.array(tree.parents, dtype=np.int64)
    return RecurrentBatch(
        np.array([request.slot for request in requests], dtype=np.int64),
        pending,
        np.clip([request.prompt_length - request.cached for request in requests], 0, pending),
        nodes,
        first[:, None] + np.where(offsets < count, offsets, newest),
        parents,
        trees,
    )
