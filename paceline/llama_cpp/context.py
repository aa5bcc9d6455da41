"""Run llama.cpp's forward passes, and edit the sequences in its cache."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import CapacityError, PacelineError, UnsupportedModelError, install_command
from paceline.llama_cpp.library import Library
from paceline.llama_cpp.structures import Batch, RawStructure, structure

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Options of a context.

    Attributes:
        cells: Number of tokens that the cache can hold, counting all sequences.
        max_rows: Maximum number of rows in one forward pass.
        rows_per_pass: Maximum number of rows that llama.cpp computes at once.
        sequences: Number of sequences that the cache can hold.
        threads: Number of CPU threads.
        rollback: Maximum number of tokens by which the context can roll back a recurrent sequence.
        flash_attention: Whether attention uses one fused operation; None lets llama.cpp choose.
    """

    cells: int
    max_rows: int
    rows_per_pass: int
    sequences: int
    threads: int
    rollback: int = 0
    flash_attention: bool | None = None


@dataclass(slots=True)
class BatchRows:
    """The rows of a llama.cpp forward pass, one token per row.

    Attributes:
        token_ids: Token id of each row, [rows].
        positions: Text position of each row's token, [rows].
        sequences: Ids of the sequences to which each row's token belongs.
        wanted: Whether the logits of each row are computed, [rows].
    """

    token_ids: list[int]
    positions: list[int]
    sequences: list[Sequence[int]]
    wanted: list[bool]


class Context:
    """A llama.cpp context: one model with a cache of fixed size.

    Args:
        library: The llama.cpp library.
        model: Handle of the model.
        vocab_size: Number of tokens in the model's vocabulary.
        options: Options of the context.
    Raises:
        MemoryError: There is not enough memory.
        UnsupportedModelError: The library created a context that does not have these options.
    """

    def __init__(
        self, library: Library, model: int, vocab_size: int, options: ContextOptions
    ) -> None:
        self._library, self._vocab_size, self.options = library, vocab_size, options
        handle = library.init_from_model(model, _parameters(library, options))
        if not handle:
            raise MemoryError(
                f"llama.cpp could not create a cache for {options.cells} tokens. Lower max_length"
                " or max_batch."
            )
        self._handle = handle
        self.free = weakref.finalize(self, library.free, handle)
        self._check(options)
        self._memory = library.get_memory(handle)

    def _check(self, options: ContextOptions) -> None:
        """Raise an error if the context did not adopt the options.

        In this case, paceline has assumed the wrong layout for llama.cpp's structures.
        """
        library, handle = self._library, self._handle
        expected = {
            "n_batch": options.max_rows,
            "n_ubatch": min(options.rows_per_pass, options.max_rows),
            "n_seq_max": options.sequences,
            "n_threads": options.threads,
            "n_threads_batch": options.threads,
        }
        actual = {name: getattr(library, name)(handle) for name in expected}
        if actual != expected or library.n_ctx(handle) < options.cells:
            raise UnsupportedModelError(
                f"llama.cpp {library.version}: got {actual} and {library.n_ctx(handle)} cells;"
                f" expected {expected} and {options.cells}. Install the extra again:"
                f" {install_command('llama-cpp')}."
            )

    def decode(self, rows: BatchRows) -> FloatArray:
        """Run a forward pass, and return the logits of the wanted rows, [wanted, vocab].

        Raises:
            CapacityError: The cache has too few free cells. The cache stays unchanged.
            PacelineError: The forward pass failed.
        """
        count = len(rows.token_ids)
        tokens = np.array(rows.token_ids, dtype=np.int32)
        positions = np.array(rows.positions, dtype=np.int32)
        lengths = np.array([len(ids) for ids in rows.sequences], dtype=np.int32)
        flat = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in rows.sequences])
        ends = np.cumsum(lengths, dtype=np.int64)
        pointers = (flat.ctypes.data + 4 * (ends - lengths)).astype(np.uint64)
        wanted = np.array(rows.wanted, dtype=np.int8)
        batch = Batch(
            count,
            tokens.ctypes.data,
            None,
            positions.ctypes.data,
            lengths.ctypes.data,
            pointers.ctypes.data,
            wanted.ctypes.data,
        )
        result = self._library.decode(self._handle, batch)
        if result == 1:
            raise CapacityError("llama.cpp found no room for the rows of a forward pass.")
        if result:
            raise PacelineError(f"llama.cpp could not run a forward pass (code {result}).")
        num_wanted = int(wanted.sum())
        if not num_wanted:
            return np.empty((0, self._vocab_size), dtype=np.float32)
        logits = self._library.get_logits(self._handle)
        return np.ctypeslib.as_array(logits, (num_wanted, self._vocab_size))

    @property
    def rollback(self) -> int:
        """Return the number of tokens by which recurrent states can be rolled back."""
        return self._library.max_rollback(self._handle)

    def copy(self, source: int, target: int, start: int = -1, end: int = -1) -> None:
        """Share the cells of `source` from position `start` to `end` with `target`."""
        self._library.memory_seq_cp(self._memory, source, target, start, end)

    def clear(self) -> None:
        """Remove all sequences from the cache."""
        self._library.memory_clear(self._memory, False)

    def remove(self, sequence: int, start: int = -1, end: int = -1) -> bool:
        """Remove positions `start` to `end` of a sequence; return False on failure."""
        return bool(self._library.memory_seq_rm(self._memory, sequence, start, end))

    def first_position(self, sequence: int) -> int:
        """Return a sequence's smallest cached position; -1 if the sequence is empty."""
        return int(self._library.memory_seq_pos_min(self._memory, sequence))

    def last_position(self, sequence: int) -> int:
        """Return a sequence's largest cached position; -1 if the sequence is empty."""
        return int(self._library.memory_seq_pos_max(self._memory, sequence))

    def read(self, sequence: int) -> bytes:
        """Return a copy of a sequence's keys, values and recurrent states."""
        size = self._library.state_seq_get_size(self._handle, sequence)
        buffer = ctypes.create_string_buffer(size)
        written = self._library.state_seq_get_data(self._handle, buffer, size, sequence)
        return buffer.raw[:written]

    def write(self, sequence: int, state: bytes) -> None:
        """Restore a sequence's keys, values and recurrent states from a copy by `read`.

        Raises:
            CapacityError: The cache has too few free cells.
        """
        if not self._library.state_seq_set_data(self._handle, state, len(state), sequence):
            raise CapacityError("llama.cpp found no room for a sequence in a new context.")


def _parameters(library: Library, options: ContextOptions) -> RawStructure:
    raw: RawStructure = library.context_default_params()
    kind = structure(library.context_fields)
    values: Any = kind.from_buffer(raw)
    values.n_ctx, values.n_batch = options.cells, options.max_rows
    values.n_ubatch, values.n_seq_max = options.rows_per_pass, options.sequences
    values.n_threads = values.n_threads_batch = options.threads
    values.kv_unified = values.swa_full = values.no_perf = True
    if options.flash_attention is not None:
        values.flash_attn_type = int(options.flash_attention)
    if options.rollback and hasattr(values, "n_rs_seq"):
        values.n_rs_seq = options.rollback
    return raw
