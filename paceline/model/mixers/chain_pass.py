"""Verify chains in models whose recurrence cannot be separated from attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.kv_cache.state_layer import StateLayer
from paceline.model.padded_batch import PaddedBatch


class ChainPass:
    """A forward pass that verifies one chain in a model with recurrent states.

    The whole model runs once over the pending tokens and the chain (a draft tree without branches).
    If all draft tokens are accepted, `commit` stores the new recurrent states. If a draft token is
    rejected, the stored states do not change, and the next forward pass processes the pending
    tokens again.

    Args:
        layout: Padded batch with one row.
        layers: Stored states by layer index. The forward pass starts from copies of these states.
        device: Device of the states.
    Attributes:
        num_requests: Always 1.
    """

    num_requests = 1

    def __init__(
        self, layout: PaddedBatch, layers: Mapping[int, StateLayer], device: torch.device
    ) -> None:
        self._pending, self._nodes = int(layout.pending[0]), int(layout.nodes[0])
        self._slot = torch.tensor([layout.first_slot], device=device)
        self._layers, self._states = layers, dict[int, dict[str, Tensor]]()
        for layer in layers.values():
            layer.load(layer.rows(self._slot))

    def finish(self) -> None:
        """Keep the forward pass's new recurrent states until `commit` is called."""
        self._states = {index: layer.working() for index, layer in self._layers.items()}

    def commit(self, accepted: Sequence[Sequence[int]]) -> list[int]:
        """Store the new states if no draft token was rejected; otherwise discard them.

        Args:
            accepted: Accepted nodes of the request.
        Returns:
            Number of tokens added to the stored states, as a list with one entry.
        """
        if len(accepted[0]) < self._nodes:
            return [0]
        for index, states in self._states.items():
            self._layers[index].hold(self._slot, states)
        return [self._pending + self._nodes]
