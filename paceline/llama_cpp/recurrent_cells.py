"""Manage the sequences of requests for models with recurrent layers.

A recurrent state is valid for a single text length. To roll a sequence back by a few tokens,
llama.cpp keeps copies of the sequence's last few states. Models with recurrent layers therefore
verify only short chains. Rejected tokens leave the cache immediately.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.errors import PacelineError
from paceline.llama_cpp.cells import Branch, SequenceCells
from paceline.llama_cpp.context import ContextOptions
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.settings import MAX_ROLLBACK


class RecurrentCells(SequenceCells):
    """Manages the sequences of a model whose layers are partly or all recurrent.

    Args:
        model: The model.
        threads: Number of CPU threads.
        rows_per_pass: Maximum number of rows that llama.cpp computes at once.
        flash_attention: Whether attention uses one fused operation; None lets llama.cpp choose.
        reversible: Whether to copy each sequence before a forward pass, so that the pass can be
            undone.
    """

    def __init__(
        self,
        model: GgufModel,
        threads: int,
        rows_per_pass: int,
        flash_attention: bool | None,
        reversible: bool,
    ) -> None:
        super().__init__(model, threads, rows_per_pass, flash_attention)
        self._reversible = reversible
        self._num_sequences = 2
        # Copies of sequences, made before the last forward pass.
        self._before: dict[int, bytes] = {}

    def open(self, sequence: int) -> None:
        """Start an empty sequence, enlarging the cache if it supports too few sequences."""
        if sequence >= self._num_sequences:
            self._num_sequences = 2 * sequence
            if self._context is not None:
                self._move_to(self.num_cells)
        super().open(sequence)

    def cut(self, sequence: int, length: int) -> int:
        """Discard the tokens of a sequence from a position onwards.

        Returns:
            The new length; 0 if the states cannot be rolled back that far.
        """
        if self._context is not None and length < self.lengths[sequence]:
            if length and not self._context.remove(sequence, length):
                length = 0
            if not length:
                self._context.remove(sequence)
        self.lengths[sequence] = length
        self._num_used = sum(self.lengths.values())
        return length

    def fork(self, branch: Branch) -> None:
        """Copy the sequence, if the forward pass may have to be undone."""
        assert self._context is not None, "there is room"
        if self._reversible:
            self._before[branch.sequence] = self._context.read(branch.sequence)

    def keep(self, branch: Branch, leaf: int, end: int) -> int:
        """Shorten a sequence to its first `end` tokens after a forward pass.

        Returns:
            The new length; 0 if the whole forward pass must be undone, but the states cannot be
            rolled back that far.
        """
        assert self._context is not None, "a forward pass came before"
        context, sequence = self._context, branch.sequence
        before = self._before.pop(sequence, None)
        if before is not None and end < branch.start:
            context.remove(sequence)
            if end:
                context.write(sequence, before)
        elif not context.remove(sequence, end):
            if end >= branch.start:
                raise PacelineError("llama.cpp could not go back to the accepted tokens.")
            context.remove(sequence)
            end = 0
        self.lengths[sequence] = end
        self._num_used = sum(self.lengths.values())
        return end

    def _options(self, num_cells: int) -> ContextOptions:
        options = super()._options(num_cells)
        return replace(options, sequences=self._num_sequences, rollback=MAX_ROLLBACK)
