"""Capture functions as CUDA graphs, and replay them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import torch

from paceline.cuda.settings import CALLS_BEFORE_CAPTURE

Result = TypeVar("Result")


class GraphMemory(Protocol[Result]):
    """Captures functions as graphs that share memory."""

    def capture(self, function: Callable[[], Result]) -> CapturedGraph[Result]:
        """Capture a function without arguments; see `GraphPool.capture`."""


class GraphPool:
    """Memory pool and CUDA stream shared by several graphs."""

    def __init__(self) -> None:
        self._pool = _new_pool()
        self._stream: Any = None

    def renew(self) -> None:
        """Create a new memory pool for later captures.

        torch frees the old pool together with the last graph that uses it.
        """
        self._pool = _new_pool()

    def capture(
        self,
        function: Callable[[], Result],
    ) -> CapturedGraph[Result]:
        """Capture a function's device work as a graph.

        Args:
            function: Function without arguments that reads and writes tensors at fixed addresses.
                It must have run before, so that its kernels are compiled.
        Raises:
            RuntimeError: An operation of the function cannot be captured.
        """
        current, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                function()  # libraries then allocate their workspaces for this stream
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            # Other threads may use the device in the meantime.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                result = function()
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self._stream)
        return CapturedGraph(graph, result)


class CapturedGraph(Generic[Result]):
    """A function's device work as a CUDA graph; inputs and results keep their addresses.

    Args:
        graph: Captured graph.
        result: Result of the function. Every replay overwrites its tensors.
    """

    def __init__(self, graph: Any, result: Result) -> None:
        self._graph, self._result = graph, result

    def replay(self) -> Result:
        """Run the function on the current inputs."""
        self._graph.replay()
        return self._result


class GraphedFunction(Generic[Result]):
    """A function that is captured as a graph once its kernels are compiled.

    Args:
        function: Function without arguments that reads and writes tensors at fixed addresses.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function, self._num_calls = function, 0
        self._graph: CapturedGraph[Result] | None = None

    def run(self, memory: GraphMemory[Result] | None, give_up: Callable[[str], None]) -> Result:
        """Run the function on the current inputs.

        Args:
            memory: Memory for the graph; None runs the function without a graph.
            give_up: Called with the reason if the function cannot be captured. The function then
                runs without a graph.
        """
        try:
            return self._run(memory)
        except RuntimeError as error:
            if memory is None or isinstance(error, torch.OutOfMemoryError):
                raise
            give_up(str(error).splitlines()[0])
            return self._function()

    def _run(self, memory: GraphMemory[Result] | None) -> Result:
        self._num_calls += 1
        if memory is None or self._num_calls <= CALLS_BEFORE_CAPTURE:
            return self._function()
        if self._graph is None:
            self._graph = memory.capture(self._function)
        return self._graph.replay()


def _new_pool() -> Any:
    return torch.cuda.graph_pool_handle()
