"""The target's hidden states along one sequence, for draft models that read them."""

from __future__ import annotations

import torch
from torch import Tensor


class HiddenStateLog:
    """Of each token of a sequence the states it was chosen by: what the target's LM head read one
    place before, and some layers.

    The states of a stretch of tokens are known, from `first` to before `last`: none of the first
    token, none of a prefix whose keys and values were there already, none of what is drafted.

    Args:
        layers: whose inputs are kept behind what the LM head reads.
    """

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = layers
        self.first = self.last = 0
        self._rows = torch.empty(0, 1 + len(layers), 0)

    def write(self, place: int, states: Tensor) -> None:
        """Take in the states of tokens in a row.

        Args:
            place: of the first of them in the sequence. states: [n, 1 + layers, hidden], n may be
                0.
        """
        begin, end = place + 1, place + 1 + len(states)
        if not len(states):
            return
        if not self.first <= begin <= self.last:
            self.first = begin
        if end > len(self._rows):
            grown = states.new_empty(max(2 * len(self._rows), end), *states.shape[1:])
            if begin > self.first:
                grown[self.first : begin] = self._rows[self.first : begin]
            self._rows = grown
        self._rows[begin:end] = states
        self.last = end

    def known(self, begin: int, end: int) -> tuple[int, Tensor]:
        """Return the states of the tokens from `begin` to before `end` that are known.

        Returns:
            the place of the first of them, and the states, [n, 1 + layers, hidden].
        """
        begin, end = max(begin, self.first), min(end, self.last)
        return begin, self._rows[begin : max(begin, end)]
