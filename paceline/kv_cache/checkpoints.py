"""Save recurrent states, so that prompts with a common prefix can share them.

The keys and values of a text can be reused for any prefix of the text. A recurrent state is valid
for a single text length only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.kv_cache.state_layer import StateLayer


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Recurrent states after the first tokens of a text.

    Attributes:
        states: States by layer index and name, each [1, ...].
        size_bytes: Size of all states.
    """

    states: dict[int, dict[str, Tensor]]
    size_bytes: int


class StateCheckpoints:
    """Saves copies of the recurrent states of requests that have a slot.

    When the copies exceed `max_bytes`, the least recently used copies are dropped.

    Args:
        layers: Stored states by layer index; empty for a model without recurrent layers.
    Attributes:
        max_bytes: Maximum total size of the copies. 0 (default) stores no copies.
    """

    def __init__(self, layers: Mapping[int, StateLayer]) -> None:
        self._layers = layers
        self.max_bytes = 0
        self._by_length: dict[Request, dict[int, Checkpoint]] = {}
        self._by_use: OrderedDict[Checkpoint, None] = OrderedDict()  # most recently used last

    @torch.inference_mode()
    def save(self, request: Request) -> None:
        """Save a copy of the recurrent states after a request's last cached token."""
        states = {
            index: layer.rows(self._slot(layer, request)) for index, layer in self._layers.items()
        }
        size = sum(
            rows.numel() * rows.element_size()
            for by_name in states.values()
            for rows in by_name.values()
        )
        if not size or size > self.max_bytes:
            return
        self._by_length.setdefault(request, {})[request.cached] = Checkpoint(states, size)
        self._by_use[self._by_length[request][request.cached]] = None
        while sum(checkpoint.size_bytes for checkpoint in self._by_use) > self.max_bytes:
            self._drop_oldest()

    def longest(self, request: Request, length: int) -> int:
        """Return the greatest length, up to `length`, at which states are saved, or 0."""
        return max(
            (known for known in self._by_length.get(request, ()) if known <= length), default=0
        )

    @torch.inference_mode()
    def restore(self, request: Request, length: int) -> None:
        """Restore the states that a request's slot had after its first `length` tokens."""
        checkpoint = self._by_length[request][length]
        self._by_use.move_to_end(checkpoint)
        for index, states in checkpoint.states.items():
            layer = self._layers[index]
            layer.hold(self._slot(layer, request), states)

    def share(self, source: Request, target: Request, length: int) -> None:
        """Let a request use the checkpoints of another request with the same prefix.

        Args:
            source: Request that has the checkpoints.
            target: Request with the same first `length` tokens.
            length: Number of tokens that the requests have in common.
        """
        shared = {
            known: checkpoint
            for known, checkpoint in self._by_length.get(source, {}).items()
            if known <= length
        }
        if shared:
            self._by_length.setdefault(target, {}).update(shared)

    def drop(self, request: Request) -> None:
        """Drop the checkpoints of a request that is losing its slot."""
        for checkpoint in self._by_length.pop(request, {}).values():
            if not any(checkpoint in other.values() for other in self._by_length.values()):
                del self._by_use[checkpoint]

    def _drop_oldest(self) -> None:
        oldest, _ = self._by_use.popitem(last=False)
        for request, by_length in [*self._by_length.items()]:
            left = {known: each for known, each in by_length.items() if each is not oldest}
            self._by_length[request] = left
            if not left:
                del self._by_length[request]

    def _slot(self, layer: StateLayer, request: Request) -> Tensor:
        device = next((states.device for states in layer.held.values()), None)
        return torch.tensor([request.slot], device=device)
