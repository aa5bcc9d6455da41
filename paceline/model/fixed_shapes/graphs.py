"""Capture forward passes as CUDA graphs, and replay them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

_Result = TypeVar("_Result")


class CapturedForward(Generic[_Result]):
    """Forward pass as a CUDA graph; its inputs and outputs stay at their addresses.

    Args:
        forward: Function without arguments that reads and writes tensors at fixed addresses.
        pool: Memory pool that the graphs of one model share.
    Attributes:
        result: Tensors that every replay overwrites.
    Raises:
        RuntimeError: An operation of the forward pass cannot be captured.
    """

    def __init__(self, forward: Callable[[], _Result], pool: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # libraries allocate their workspaces outside the capture
        torch.cuda.current_stream().wait_stream(stream)
        # Other threads may use the device in the meantime.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.result = forward()

    def replay(self) -> _Result:
        """Run the forward pass on the current inputs."""
        self._graph.replay()
        return self.result


def new_pool() -> Any:
    """Return a memory pool for the graphs of one model."""
    return torch.cuda.graph_pool_handle()
