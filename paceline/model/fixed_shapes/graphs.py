"""Capture forward passes as CUDA graphs, and replay them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from paceline.model.fixed_shapes.output import BucketOutput


class GraphMemory:
    """Memory and CUDA stream shared by the graphs of one model.

    Args:
        max_tokens: Maximum total number of columns in a captured forward pass.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._pool = _new_pool()
        self._stream: Any = None
        self._logits: Tensor | None = None

    def renew_pool(self) -> None:
        """Create a new memory pool for later captures.

        torch frees the old pool together with the last graph that uses it.
        """
        self._pool = _new_pool()

    def capture(self, forward: Callable[[], BucketOutput]) -> CapturedForward:
        """Capture a forward pass.

        Args:
            forward: Function without arguments that reads and writes tensors at fixed addresses.
                It must have run before, so that its kernels are compiled.
        Raises:
            RuntimeError: An operation of the forward pass cannot be captured.
        """
        current, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                forward()  # libraries then allocate their workspaces for this stream
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            # Other threads may use the device in the meantime.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                output = self._keep(forward())
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self._stream)
        return CapturedForward(graph, output)

    def _keep(self, output: BucketOutput) -> BucketOutput:
        """Move an output's logits to memory that all graphs share.

        Without sharing, every graph would need separate memory for the logits of all its columns.
        """
        logits = output.logits
        if self._logits is None or self._logits.shape[1] != logits.shape[-1]:
            self._logits = logits.new_empty(self._max_tokens, logits.shape[-1])
        shared = self._logits[: logits.shape[0] * logits.shape[1]].view(logits.shape)
        return BucketOutput(shared.copy_(logits), output.states)


class CapturedForward:
    """A forward pass as a CUDA graph, with inputs and outputs at fixed addresses.

    Args:
        graph: Captured graph.
        output: Tensors that every replay overwrites.
    """

    def __init__(self, graph: Any, output: BucketOutput) -> None:
        self._graph, self._output = graph, output

    def replay(self) -> BucketOutput:
        """Run the forward pass on the current inputs."""
        self._graph.replay()
        return self._output


def _new_pool() -> Any:
    return torch.cuda.graph_pool_handle()
