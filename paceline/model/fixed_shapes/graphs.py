"""Capture forward passes as CUDA graphs that share memory for their logits."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from paceline.cuda.graphs import CapturedGraph, GraphPool
from paceline.model.fixed_shapes.output import BucketOutput


class BucketGraphs:
    """Memory and CUDA stream shared by the graphs of one model.

    Args:
        max_tokens: Maximum total number of columns in a captured forward pass.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._pool = GraphPool()
        self._logits: Tensor | None = None

    def renew_pool(self) -> None:
        """Create a new memory pool for later captures; see `GraphPool.renew`."""
        self._pool.renew()

    def capture(self, function: Callable[[], BucketOutput]) -> CapturedGraph[BucketOutput]:
        """Capture a forward pass; see `GraphPool.capture`.

        Args:
            function: Function without arguments that runs the forward pass.
        Raises:
            RuntimeError: An operation of the forward pass cannot be captured.
        """
        return self._pool.capture(lambda: self._with_shared_logits(function()))

    def _with_shared_logits(self, output: BucketOutput) -> BucketOutput:
        """Move an output's logits to memory that all graphs share.

        Without sharing, every graph would need separate memory for the logits of all its columns.
        """
        logits = output.logits
        if self._logits is None or self._logits.shape[1] != logits.shape[-1]:
            self._logits = logits.new_empty(self._max_tokens, logits.shape[-1])
        shared = self._logits[: logits.shape[0] * logits.shape[1]].view(logits.shape)
        return output._replace(logits=shared.copy_(logits))
