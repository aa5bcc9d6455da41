"""Test that frames of deep calls need no new memory."""

from __future__ import annotations

import resource
from collections.abc import Callable

from paceline.util.frame_memory import call_with_frame_memory


def _call_at_every_depth(depth: int) -> int:
    """Call a function often at each of `depth` levels, since a chunk may end at any."""
    calls = sum(_leaf(number) for number in range(500))
    return calls + (_call_at_every_depth(depth - 1) if depth else 0)


def _leaf(number: int) -> int:
    return len([number, *range(3)]) // 4


def _new_pages(function: Callable[[], int]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert function() == 500 * 301
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_frames_share_memory() -> None:
    call_with_frame_memory(lambda: _call_at_every_depth(300))
    chunked = _new_pages(lambda: _call_at_every_depth(300))
    shared = _new_pages(lambda: call_with_frame_memory(lambda: _call_at_every_depth(300)))
    assert shared < chunked / 2
