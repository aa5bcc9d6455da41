"""Manage requests' sequences in a llama.cpp cache, in text order.

A cell of the cache holds one token, and may belong to several sequences. A query attends to the
cells of its sequence at its own and earlier positions. Each leaf of a draft tree therefore has a
sequence, and each node belongs to the sequences of all leaves below the node.

With flash attention on a CPU, llama.cpp sums the values of a query's cells in cell order, and
skips all other cells. If the cells of a text are in text order, the other cells therefore do not
change any bit of the text's logits.

llama.cpp writes new tokens to the first free cells. To keep cells in text order, a cell must not
become free while a later cell is in use. Rejected tokens and finished requests therefore keep their
cells, and move to the sequence `DISCARDED`. Once the cache is full, the module copies the sequences
in use to the front of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.llama_cpp.context import BatchRows, Context, ContextOptions, FloatArray
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.settings import (
    BATCH_ROWS,
    CELL_STEP,
    DISCARDED_SHARE,
    MAX_SEQUENCES,
)

DISCARDED = 0


@dataclass(frozen=True, slots=True)
class Branch:
    """Sequence ids of a request, and of the leaves of its draft tree.

    Attributes:
        sequence: Sequence of the request.
        leaves: Sequences of the tree's leaves; the first one is `sequence`.
        start: Text position of the root's children, which is the length of the text before the
            draft.
    """

    sequence: int
    leaves: Sequence[int]
    start: int


class SequenceCells:
    """Manages the sequences in a model's llama.cpp cache.

    Args:
        model: The model.
        threads: Number of CPU threads.
        rows_per_pass: Maximum number of rows that llama.cpp computes at once.
        flash_attention: Whether attention uses one fused operation; None lets llama.cpp choose.
    Attributes:
        lengths: Number of cached tokens of each sequence in use, by sequence id.
    """

    def __init__(
        self, model: GgufModel, threads: int, rows_per_pass: int, flash_attention: bool | None
    ) -> None:
        self._model, self._threads = model, threads
        self._rows_per_pass, self._flash_attention = rows_per_pass, flash_attention
        self._context: Context | None = None
        self._num_used = 0  # number of cells in use, all at the front of the cache
        self.lengths: dict[int, int] = {}

    @property
    def num_cells(self) -> int:
        """Return the number of cells in the cache."""
        return 0 if self._context is None else self._context.options.cells

    def reserve(self, num_tokens: int) -> None:
        """Ensure that the cache can hold `num_tokens` tokens across all sequences.

        Raises:
            MemoryError: There is not enough memory.
        """
        cells = -(-int(num_tokens * (1 + DISCARDED_SHARE)) // CELL_STEP) * CELL_STEP
        if cells > self.num_cells:
            self._move_to(cells)

    def make_room(self, num_rows: int) -> None:
        """Ensure that enough cells are free for the rows of a forward pass.

        Raises:
            MemoryError: There is not enough memory.
        """
        if self._num_used + num_rows > self.num_cells:
            required = sum(self.lengths.values()) + num_rows
            if required > self.num_cells:
                self.reserve(2 * required)
            else:
                self._move_to(self.num_cells)

    def decode(self, rows: BatchRows) -> FloatArray:
        """Run a forward pass; the cache must have room for its rows.

        Returns:
            Logits of the rows whose `wanted` is True, [wanted, vocab]. The next call overwrites
            them.
        """
        assert self._context is not None, "there is room"
        logits = self._context.decode(rows)
        self._num_used += len(rows.token_ids)
        return logits

    def add_padding(self, rows: BatchRows) -> None:
        """Append a row whose result is not used."""
        assert self._context is not None, "there is room"
        rows.token_ids.append(0)
        rows.positions.append(self._context.last_position(DISCARDED) + 1)
        rows.sequences.append([DISCARDED])
        rows.wanted.append(False)

    def open(self, sequence: int) -> None:
        """Start an empty sequence with this id."""
        self.lengths[sequence] = 0

    def share(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a sequence to an empty sequence."""
        if length and self._context is not None:
            self._context.copy(source, target, end=length)
        self.lengths[target] = length

    def cut(self, sequence: int, length: int) -> int:
        """Discard a sequence's tokens from a position onwards; return its new length."""
        if self._context is not None and length < self.lengths[sequence]:
            self._context.copy(sequence, DISCARDED, length)
            self._context.remove(sequence, length)
        self.lengths[sequence] = length
        return length

    def close(self, sequence: int) -> None:
        """Discard all tokens of a sequence, and free its id."""
        self.cut(sequence, 0)
        del self.lengths[sequence]
        if not self.lengths and self._context is not None:
            self._context.clear()
            self._num_used = 0

    def first_position(self, sequence: int) -> int:
        """Return the position of a sequence's first token that is still in the cache."""
        return 0 if self._context is None else max(0, self._context.first_position(sequence))

    def fork(self, branch: Branch) -> None:
        """Copy all tokens of a request to the sequences of its tree's leaves.

        The cache must have room for the forward pass that follows.
        """
        assert self._context is not None, "there is room"
        for leaf in branch.leaves[1:]:
            self._context.copy(branch.sequence, leaf)

    def keep(self, branch: Branch, leaf: int, end: int) -> int:
        """Keep one path of a request's draft tree, and discard the other nodes.

        Args:
            branch: The request's sequence, and the sequence of each leaf of the tree.
            leaf: Sequence of a leaf below the last kept node.
            end: Position after the last kept node.
        Returns:
            The new length of the request's sequence.
        """
        assert self._context is not None, "a forward pass came before"
        context, sequence, start = self._context, branch.sequence, branch.start
        for each in branch.leaves:
            context.copy(each, DISCARDED, end if each == leaf else start)
        context.remove(sequence, end if sequence == leaf else start)
        if sequence != leaf:
            context.copy(leaf, sequence, start, end)
        for each in branch.leaves[1:]:
            context.remove(each)
        self.lengths[sequence] = end
        return end

    def _move_to(self, num_cells: int) -> None:
        """Move all sequences to the front of the cache, resized to `num_cells` cells."""
        states = {
            sequence: self._context.read(sequence)
            for sequence, length in self.lengths.items()
            if length and self._context is not None
        }
        options = self._options(num_cells)
        if self._context is not None and self._context.options == options:
            context = self._context
            context.clear()
        else:
            context = self._model.new_context(options)
        for sequence, state in states.items():
            context.write(sequence, state)
        if self._context not in (None, context):
            self._context.free()
        self._context = context
        self._num_used = sum(self.lengths.values())

    def _options(self, num_cells: int) -> ContextOptions:
        return ContextOptions(
            num_cells,
            min(BATCH_ROWS, num_cells),
            self._rows_per_pass,
            MAX_SEQUENCES,
            self._threads,
            flash_attention=self._flash_attention,
        )
