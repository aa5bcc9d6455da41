"""Define the results of the prefix-reuse, arriving-prompt and soak measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.report.documents import saved_as


@dataclass(frozen=True, slots=True)
class SecondTurn:
    """Time to the first token of a chat's second turn, with and without prefix reuse.

    Attributes:
        before: Number of tokens in the conversation before the second turn.
        reused: Times to the first token if the first turn is cached, in seconds.
        reused_tokens: Number of prompt tokens taken from the cache if the first turn is cached.
        recomputed: Times to the first token without prefix reuse, in seconds.
        recomputed_tokens: Number of prompt tokens taken from the cache without prefix reuse.
    """

    before: int
    reused: tuple[float, ...]
    reused_tokens: tuple[int, ...]
    recomputed: tuple[float, ...] = saved_as("afresh")
    recomputed_tokens: tuple[int, ...] = saved_as("afresh_tokens")

    @property
    def ratio(self) -> float:
        """Return the ratio of the median times to the first token: recomputed / reused."""
        return percentile(self.recomputed, 0.5) / percentile(self.reused, 0.5)


@dataclass(frozen=True, slots=True)
class Intrusion:
    """Gaps between a stream's chunks, in seconds, with and without arriving prompts.

    Attributes:
        tokens: Number of tokens in each arriving prompt.
        begun: Number of arriving prompts that the engine started to process.
        alone: Gaps while no prompts arrive.
        disturbed: Gaps while prompts arrive.
    """

    tokens: int
    begun: int
    alone: tuple[float, ...]
    disturbed: tuple[float, ...] = saved_as("beside")

    @property
    def ratio(self) -> float:
        """Return the 99th percentile gap with arriving prompts, divided by that without."""
        return percentile(self.disturbed, 0.99) / percentile(self.alone, 0.99)


@dataclass(frozen=True, slots=True)
class Soak:
    """The memory use and the answers under a long mixed load.

    Attributes:
        resident: Measurements in order: seconds since the start, and memory of the process in
            bytes.
        answers: Number of answers that ended normally.
        aborted: Number of answers aborted by their clients.
        left_open: Number of requests that the engine had not released at the end.
    """

    resident: tuple[tuple[float, int], ...]
    answers: int
    aborted: int
    left_open: int

    @property
    def growth(self) -> float:
        """Return the mean memory use in the last quarter, relative to the second quarter.

        The first quarter of the time is excluded, because caches fill up during it.
        """
        bytes_ = [size for _, size in self.resident]
        quarter = max(1, len(bytes_) // 4)
        return _mean(bytes_[-quarter:]) / _mean(bytes_[quarter : 2 * quarter] or bytes_)


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of the values, by nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
