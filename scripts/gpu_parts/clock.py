"""Time calls on a device: until the result, until the launch returns, and on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_WARM_UP, _IN_GRAPH = 3, 10


def wait(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_ms(
    call: Callable[[], object], device: torch.device, repeats: int, warm_up: int = _WARM_UP
) -> float:
    """Return the median time of a call in milliseconds, with the wait for its result.

    Args:
        call: Work to time.
        device: Device that the call uses.
        repeats: Number of timed calls.
        warm_up: Number of calls before them.
    """
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def host_ms(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time in milliseconds until a call returns, without waiting for its
    result.
    """
    call()
    seconds = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    wait(device)
    return 1e3 * statistics.median(seconds)


def device_ms(call: Callable[[], object], device: torch.device, repeats: int) -> float | None:
    """Return a call's device time in milliseconds, measured in a CUDA graph without launches.

    Returns None on a CPU, and for calls that a graph cannot capture.
    """
    if device.type != "cuda":
        return None
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_IN_GRAPH):
                call()
    except RuntimeError:
        wait(device)
        return None
    return wall_ms(graph.replay, device, repeats) / _IN_GRAPH
