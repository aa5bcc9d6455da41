"""Store the target's hidden states for drafters that use them."""

from __future__ import annotations

import torch
from torch import Tensor


class HiddenStateLog:
    """The hidden states from which the target chose each token of a request.

    For each token, the log stores the states of the preceding text position: the LM head's input,
    followed by the inputs of selected layers. The log covers the tokens `first` to `last` - 1. It
    stores no states for the first token of the text, for a cached prefix, or for draft tokens.

    Args:
        layers: Layers whose inputs are recorded in addition to the input of the LM head.
    """

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = layers
        self.first = self.last = 0
        self._base = 0  # text position of the first row
        self._rows = torch.empty(0, 1 + len(layers), 0)

    def write(self, position: int, states: Tensor) -> None:
        """Record the states for consecutive tokens.

        Args:
            position: Text position of the first token.
            states: Hidden states, [n, 1 + layers, hidden]; n may be 0.
        """
        begin, end = position + 1, position + 1 + len(states)
        if not len(states):
            return
        if not self.first <= begin <= self.last:
            self.first = self._base = begin
        if end - self._base > len(self._rows):
            grown = states.new_empty(max(2 * len(self._rows), end - self._base), *states.shape[1:])
            if begin > self.first:
                known = slice(self.first - self._base, begin - self._base)
                grown[known] = self._rows[known]
            self._rows = grown
        self._rows[begin - self._base : end - self._base] = states
        self.last = end

    def known(self, begin: int, end: int) -> tuple[int, Tensor]:
        """Return the recorded states for tokens `begin` to `end` - 1.

        Returns:
            Text position of the first token in this range that has recorded states, and all
            recorded states in the range, [n, 1 + layers, hidden].
        """
        begin, end = max(begin, self.first), min(end, self.last)
        return begin, self._rows[begin - self._base : max(begin, end) - self._base]

    def forget(self, position: int) -> None:
        """Drop the states for tokens before a text position, to free memory."""
        self.first = max(self.first, min(position, self.last))
        if 2 * (self.first - self._base) > len(self._rows):
            self._rows = self._rows[self.first - self._base :].clone()
            self._base = self.first
