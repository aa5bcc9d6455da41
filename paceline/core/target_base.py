"""Define the base class of targets, for any library that runs forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from paceline.core.target import require_context
from paceline.core.tree import EMPTY_TREE, DraftTree

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.core.request import Request


class TargetBase(ABC):
    """Base class of targets with a KV cache."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Return the maximum length of a request, in tokens."""

    @abstractmethod
    def forward(self, requests: Sequence[Request], trees: Sequence[DraftTree]) -> Tensor:
        """Run a forward pass, and return padded logits [batch, 1 + width, vocab]."""

    @abstractmethod
    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Commit the pending tokens and the accepted nodes from the last forward pass.

        Args:
            accepted: Accepted nodes, in order, for each request in that pass.
        """

    def feed(self, requests: Sequence[Request]) -> Tensor:
        """Run and commit a pass without trees, and return its logits [batch, 1, vocab]."""
        logits = self.forward(requests, [EMPTY_TREE] * len(requests))
        self.commit([()] * len(requests))
        return logits

    def check_length(self, request: Request) -> None:
        """Check that a request fits into the model's context.

        Raises:
            CapacityError: The request is too long.
        """
        require_context(request, self.context_length)


def count_forward(requests: Iterable[Request], num_rows: Iterable[int]) -> None:
    """Add a forward pass to the counters of its requests.

    Args:
        requests: Requests in the pass.
        num_rows: Number of rows of each request.
    """
    for request, count in zip(requests, num_rows, strict=True):
        counters = request.counters
        counters.target_forwards += 1
        counters.prefill_forwards += len(request) == request.prompt_length
        counters.query_tokens.append(count)
