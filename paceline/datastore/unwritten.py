"""Keep finished outputs in memory until they are written to disk."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from paceline.datastore.options import UpdateOptions
from paceline.datastore.store_settings import MAX_TAIL_RATIO


class UnwrittenOutputs:
    """A queue of outputs, oldest first, that tracks when to write them to disk."""

    def __init__(self, options: UpdateOptions) -> None:
        self._options = options
        self._outputs: deque[NDArray[Any]] = deque()
        self._since = 0.0  # time at which the first output arrived

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def append(self, output: NDArray[Any]) -> None:
        """Add an output; drop the oldest outputs if too many tokens are unwritten.

        The limit is MAX_TAIL_RATIO times `UpdateOptions.max_unwritten_tokens`.
        """
        if not self._outputs:
            self._since = time.monotonic()
        self._outputs.append(output)
        tokens = self._num_tokens()
        limit = MAX_TAIL_RATIO * self._options.max_unwritten_tokens
        while tokens > limit and len(self._outputs) > 1:
            tokens -= self._outputs.popleft().size

    def remove(self, written: Sequence[NDArray[Any]]) -> None:
        """Remove outputs that have been written to disk."""
        ids = {id(output) for output in written}
        self._outputs = deque(output for output in self._outputs if id(output) not in ids)
        self._since = time.monotonic()

    def outputs(self) -> list[NDArray[Any]]:
        """Return all unwritten outputs, oldest first."""
        return list(self._outputs)

    def seconds_until_due(self, retry_at: float) -> float | None:
        """Return the seconds until outputs must be written; None if there are none.

        Args:
            retry_at: Earliest time of the next attempt, from `time.monotonic`.
        """
        if not self._outputs:
            return None
        is_full = self._num_tokens() >= self._options.max_unwritten_tokens
        due_at = 0.0 if is_full else self._since + self._options.max_unwritten_s
        return max(0.0, max(retry_at, due_at) - time.monotonic())

    def _num_tokens(self) -> int:
        return sum(output.size for output in self._outputs)
