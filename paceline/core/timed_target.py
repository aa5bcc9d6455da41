"""Define the interface of targets whose forward-pass cost can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from paceline.core.target import Target

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from paceline.core.request import Request
    from paceline.core.tree import DraftTree


class TimedTarget(Target, Protocol):
    """A target whose forward passes can be timed."""

    @property
    def device(self) -> torch.device:
        """Return the device of the logits."""

    @property
    def open_sequences(self) -> int:
        """Return the number of requests that have a slot."""

    def reserve(self, slots: int, positions: int) -> None:
        """Allocate KV-cache slots in advance.

        Args:
            slots: Number of slots, one per request.
            positions: Number of cache positions per slot, for tokens and tree nodes.
        """

    def apart(self) -> TimedTarget:
        """Return the same model with a separate, empty cache."""

    def cost_key(self, max_rows: int) -> str:
        """Return a checksum of everything that affects the cost of forward passes.

        Args:
            max_rows: Maximum number of rows that are timed.
        """

    def forward(self, requests: Sequence[Request], trees: Sequence[DraftTree]) -> Tensor:
        """Run a forward pass over trees; return padded logits, [batch, 1 + width, vocab].

        The width is the number of nodes in the largest tree.
        """

    def feed(self, requests: Sequence[Request]) -> Tensor:
        """Run and commit a forward pass without trees; return logits [batch, 1, vocab]."""
