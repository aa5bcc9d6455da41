"""Keep the tokens of unfinished outputs in memory so that they can be searched."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class RunningOutputs:
    """Collects unfinished outputs until they end.

    Args:
        max_tokens: Maximum total number of tokens in all outputs. Above this number, the longest
            output is dropped, and only its later tokens are collected.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens, self._num_tokens = max_tokens, 0
        self._texts: dict[int, array[int]] = {}  # by output

    def __bool__(self) -> bool:
        """Return True if there are two or more outputs; a single output is not searched."""
        return len(self._texts) > 1

    @property
    def tokens(self) -> int:
        """Number of tokens that `documents` returns."""
        return self._num_tokens if self else 0

    def extend(self, output: int, token_ids: Iterable[int]) -> None:
        """Append tokens to an output; start a new output if it does not exist yet."""
        text = self._texts.get(output)
        if text is None:
            text = self._texts[output] = array("I")
        before = len(text)
        text.extend(token_ids)
        self._num_tokens += len(text) - before
        while self._num_tokens > self._max_tokens:
            self.drop(max(self._texts, key=self._size_of))

    def drop(self, output: int) -> None:
        """Discard the collected tokens of an output, if there are any."""
        if output in self._texts:
            self._num_tokens -= self._size_of(output)
            del self._texts[output]

    def documents(self) -> list[NDArray[np.uint32]]:
        """Return all unfinished outputs, or none if there is only one (see `__bool__`)."""
        return [np.array(text, dtype=np.uint32) for text in self._texts.values()] if self else []

    def _size_of(self, output: int) -> int:
        return len(self._texts[output])
