"""Outputs that go on, as far as they have come: searched beside the finished ones, in memory
only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RunningOutputs:
    """What is kept of them until they end.

    Args:
        most: tokens of all together; beyond, the longest output is forgotten, and begins anew with
            what it gets next.
    """

    def __init__(self, most: int) -> None:
        self._most, self._tokens = most, 0
        self._texts: dict[int, list[NDArray[np.uint32]]] = {}  # in the pieces they came in

    def __bool__(self) -> bool:
        """Whether there is anything to search: one alone knows its own text."""
        return len(self._texts) > 1

    @property
    def tokens(self) -> int:
        """Tokens that are to be searched."""
        return self._tokens if self else 0

    def extend(self, output: int, token_ids: NDArray[np.uint32]) -> None:
        """Put tokens behind an output, which may be new; ids of the vocabulary."""
        self._texts.setdefault(output, []).append(token_ids)
        self._tokens += token_ids.size
        while self._tokens > self._most:
            self.drop(
                max(self._texts, key=lambda one: sum(piece.size for piece in self._texts[one]))
            )

    def drop(self, output: int) -> None:
        """Forget an output, where anything is kept of it."""
        self._tokens -= sum(piece.size for piece in self._texts.pop(output, ()))

    def documents(self) -> list[NDArray[np.uint32]]:
        """Return what is to be searched."""
        return [np.concatenate(pieces) for pieces in self._texts.values()] if self else []
