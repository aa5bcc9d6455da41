"""Verify draft trees with llama.cpp."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.settings import PREFILL_CHUNK
from paceline.core.target_base import TargetBase, count_forward
from paceline.core.tree import DraftTree
from paceline.errors import UnsupportedModelError
from paceline.llama_cpp.cells import SequenceCells
from paceline.llama_cpp.context import BatchRows
from paceline.llama_cpp.draft_rows import RequestRows, limit_leaves, rows_of, rows_per_call
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.model_key import gguf_key
from paceline.llama_cpp.recurrent_cells import RecurrentCells
from paceline.llama_cpp.settings import (
    DISCARDED_SHARE,
    EXACT_ROWS_PER_PASS,
    MAX_SEQUENCES,
    ROWS_PER_PASS,
)
from paceline.llama_cpp.slots import SequenceSlots, sequence_of


class GgufTarget(TargetBase):
    """A GGUF model in llama.cpp with a cache for many requests.

    Implements `paceline.core.target.Target`.

    Args:
        model: The model.
        threads: Number of CPU threads.
        exact: Whether a request's logits must depend, bit for bit, only on the request's own text.
        prefill_chunk: Maximum number of pending tokens per request in one forward pass.
        reversible: Whether forward passes without a commit leave recurrent states unchanged.
    Attributes:
        model: The model.
        exact: Whether a request's logits depend, bit for bit, only on the request's own text.
        prefill_chunk: Maximum number of pending tokens per request in one forward pass.
        slots: Slots of the cache, and their requests.
        forward_seconds: Total time spent in forward passes, in seconds.
    """

    packs = True
    uses_target_states = False
    stale = False
    growth_step = 1

    def __init__(
        self,
        model: GgufModel,
        threads: int,
        exact: bool = True,
        prefill_chunk: int = PREFILL_CHUNK,
        reversible: bool = False,
    ) -> None:
        self.model, self.exact, self.prefill_chunk = model, exact, prefill_chunk
        self._threads = threads
        rows_per_pass = EXACT_ROWS_PER_PASS if exact else ROWS_PER_PASS
        options = model, threads, rows_per_pass, True if exact else None
        self._cells = (
            RecurrentCells(*options, reversible) if model.is_recurrent else SequenceCells(*options)
        )
        self.slots = SequenceSlots(self._cells)
        self.forward_seconds = 0.0
        self._last: list[RequestRows] = []  # rows of the last forward pass, until its commit

    @property
    def takes_trees(self) -> bool:
        """Return True if the model verifies trees; recurrent models verify only chains."""
        return not self.model.is_recurrent

    @property
    def keeps_states(self) -> bool:
        """Return True if any layer has recurrent states, which cannot be truncated."""
        return self.model.is_recurrent

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids that the logits cover."""
        return self.model.vocab_size

    @property
    def context_length(self) -> int:
        """Return the maximum length of a request in tokens."""
        return self.model.context_length

    @property
    def device(self) -> torch.device:
        """Return the device of the logits."""
        return self.model.device

    def preallocate(self, slots: int, positions: int, limit: int) -> None:
        """Do nothing, because llama.cpp would immediately allocate the maximum size."""

    @property
    def capacity(self) -> int:
        """Return the total number of cache positions in all slots."""
        return self.slots.capacity

    @property
    def position_bytes(self) -> int:
        """Return the size of a cache position, in bytes.

        The size includes a proportional share of the cells for discarded tokens.
        """
        return int(self.model.token_bytes * (1 + DISCARDED_SHARE))

    @property
    def state_bytes(self) -> int:
        """Return the size of one request's recurrent states, in bytes."""
        return self.model.state_bytes

    @property
    def open_sequences(self) -> int:
        """Return the number of requests that have a slot."""
        return self.slots.num_taken

    def reserve(self, slots: int, positions: int) -> None:
        """Allocate cache memory for a number of slots in advance.

        Args:
            slots: Number of slots, one per request.
            positions: Number of cache positions per slot, for tokens and tree nodes.
        """
        self.slots.resize(slots, slots * positions)

    def cost_key(self, max_rows: int) -> str:
        """Return a checksum of everything on which the cost of forward passes depends."""
        return gguf_key(self.model, self._threads, exact=self.exact, rows=max_rows)

    def apart(self) -> GgufTarget:
        """Return a second target with its own cache, for measurements and checks."""
        return GgufTarget(self.model, self._threads, self.exact, self.prefill_chunk, True)

    def open(self, request: Request, slot_of: Request | None = None, length: int = 0) -> None:
        """Assign a cache slot to a request.

        Args:
            request: Request to process.
            slot_of: Finished request whose slot is reused; None selects an empty slot.
            length: Number of leading cache positions of `slot_of` to reuse.
        Raises:
            CapacityError: The request is too long, or there are too many requests.
        """
        self.check_length(request)
        self._drop_last()
        if slot_of is None:
            self.slots.take(request)
        else:
            self.slots.inherit(request, slot_of, length)

    def close(self, request: Request) -> None:
        """Free the slot of a request."""
        self._drop_last()
        self.slots.free(request)

    def reusable_length(self, source: Request, length: int) -> int:
        """Return how many of the first `length` tokens of `source` can be reused."""
        if self.model.is_recurrent:
            return source.cached if source.cached <= length else 0
        window = self.model.window
        if window and self._cells.first_position(sequence_of(source)) > max(0, length - window):
            return 0  # the last tokens of the window have left the cache
        return length

    def shares_prefix(self, request: Request, other: Request) -> bool:
        """Return True, because equal prefixes have equal keys and values."""
        return True

    def limit_tree(self, tree: DraftTree, request: Request) -> DraftTree:
        """Limit a draft tree to the nodes that the model can verify.

        Each leaf of the tree needs a free llama.cpp sequence. A recurrent model verifies only a
        chain that is short enough to be rolled back.
        """
        if self.model.is_recurrent:
            return tree.best_chain().first(self.model.max_rollback)
        spare = self.slots.num_spare_sequences
        return limit_leaves(tree, 1 + spare // max(1, self.slots.num_taken))

    def forward(self, requests: Sequence[Request], trees: Sequence[DraftTree]) -> Tensor:
        """Run `forward_nodes`, and return padded logits [batch, 1 + width, vocab]."""
        return self.forward_nodes(requests, trees).padded()

    def forward_nodes(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
        num_top: int = 0,
    ) -> NodeLogits:
        """Run one forward pass over the requests' pending tokens and draft trees.

        Args:
            requests: Open requests with at least one pending token each.
            trees: One draft tree per request.
            prefill_chunk: Maximum number of pending tokens per request; None means the maximum that
                was set for the target.
            reduced_logits: Ignored, because the vocabulary is never reduced.
            num_top: Ignored, because the logits are on the CPU.
        Raises:
            MemoryError: The cache cannot grow enough for the tokens and nodes.
        """
        self._drop_last()
        chunk = self.prefill_chunk if prefill_chunk is None else prefill_chunk
        parts = rows_of(requests, trees, chunk, MAX_SEQUENCES - self.slots.num_spare_sequences)
        start = time.perf_counter()
        self._cells.make_room(sum(map(len, parts)) + len(parts))
        self._last = parts
        flat = torch.cat([self._decode(group) for group in rows_per_call(parts)])
        self.forward_seconds += time.perf_counter() - start
        count_forward(requests, map(len, parts))
        counts = [1 + len(tree) for tree in trees]
        return NodeLogits.from_rows(flat, counts, [part.num_scored for part in parts])

    def _decode(self, parts: Sequence[RequestRows]) -> Tensor:
        """Call llama.cpp once, and return the logits of the rows that need them."""
        rows = BatchRows([], [], [], [])
        for part in parts:
            self._cells.fork(part.branch)
            part.add_to(rows)
        if self.exact and self._threads > 1 and len(rows.token_ids) % EXACT_ROWS_PER_PASS == 1:
            # If a pass has a single row, llama.cpp divides this row among its threads.
            self._cells.add_padding(rows)
        return torch.from_numpy(self._cells.decode(rows).copy())

    def forward_with_states(self, *arguments: Any, **options: Any) -> NodeLogits:
        """Reject requests for hidden states, which llama.cpp does not return.

        Raises:
            UnsupportedModelError: Always.
        """
        raise UnsupportedModelError(
            "llama.cpp does not return hidden states; expected a drafter that does not read them."
            " Choose another drafter, or \0engine='transformers'\0."
        )

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Commit the pending tokens and the accepted nodes from the last forward pass."""
        for part, path in zip(self._last, accepted, strict=True):
            end = part.branch.start + len(path)
            leaf = part.leaf_of[path[-1]] if path else part.branch.sequence
            part.request.cached = self._cells.keep(part.branch, leaf, end)
        self._last = []

    def _drop_last(self) -> None:
        """Discard the rows of a forward pass that was not committed."""
        for part in self._last:
            first = part.branch.start - part.num_pending
            length = self._cells.keep(part.branch, part.branch.sequence, first)
            part.request.cached = min(part.request.cached, length)
        self._last = []

    def rewind(self, request: Request, length: int) -> None:
        """Drop a request's cache from position `length` onwards."""
        self._drop_last()
        length = min(request.cached, length)
        request.cached = self._cells.cut(sequence_of(request), length)

    def undo(self, request: Request, length: int) -> None:
        """Undo a failed step: drop a request's cache beyond its first `length` tokens."""
        self.rewind(request, length)

    def clear_after(self, request: Request) -> None:
        """Do nothing, because attention skips the cells of other sequences."""

    def restart_if_due(self, request: Request) -> None:
        """Do nothing, because llama.cpp never changes the rotary frequencies of a text."""

    def prefill_media(self, request: Request) -> None:
        """Raise an error for prompts with images, videos or audio."""
        raise UnsupportedModelError(
            "llama.cpp: got a prompt with images, videos or audio; expected text. Use"
            " \0engine='transformers'\0 for it."
        )
