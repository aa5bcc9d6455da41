"""CachedLM: any transformers decoder as "one forward over the pending tokens and draft trees of a
batch".

The target and a draft model are both one of these. With attention by position sequences are packed
behind one another (`RaggedBatch`). Else each is a row whose columns are: padding, pending tokens
(the newest is the root), tree nodes, padding; pending tokens end at the same column in all rows, so
the LM head runs on one slice (`PaddedBatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.backend.products import Products
from paceline.backend.resolve import fastest_products
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.settings import PREFILL_CHUNK
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.errors import CapacityError, ConfigError, UnsupportedModelError
from paceline.kv_cache.slot_cache import SlotCache
from paceline.kv_cache.slots import Slots
from paceline.model.architecture import Architecture
from paceline.model.eagle.fed import capture_states
from paceline.model.eagle.gather import states_to_read
from paceline.model.eagle.modules import uses_target_states
from paceline.model.forward_mode import in_forward_mode, mode_of
from paceline.model.model_runner import ModelRunner
from paceline.model.model_view import ModelView, View
from paceline.model.padded_batch import PaddedBatch, lay_out
from paceline.model.ragged_batch import RaggedBatch, pack
from paceline.model.reduced_vocabulary import kept_ids
from paceline.model.rotary import (
    cut_at_switch,
    restart_beyond_switch,
    same_rotary_frequencies,
)
from paceline.model.vocabulary import SharedVocabulary


class CachedLM:
    """A model with a slot cache.

    Args:
        model: a decoder-only transformers model, in eval mode, on its device.
        prefill_chunk: most pending tokens one forward takes per sequence; may be changed between
            forwards.
        batch_invariant: a token's attention depends on its own text alone, to the last bit.
        min_rows: a forward, and the LM head in it, gets at least so many rows: padding makes up
            for the rest.
        products: which matrix products are ours; None = those that are faster than torch's on this
            machine.
        view: makes what is called in the place of the model.
        chains: draft trees cannot be verified, though its forward takes masks.
    Attributes:
        prefill_chunk, min_rows, products, chains: as above.
        slots: of the cache, and who has them.
        uses_target_states: it is a draft that reads its target's hidden states (`Request.states`).
        kept_ids: ids, ascending, of the tokens that the head keeps (`kept_vocabulary`) and the
            target has; None = all.
    Raises:
        UnsupportedModelError: an architecture that cannot be rolled back or masked, or that cannot
            be batch-invariant when asked.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prefill_chunk: int = PREFILL_CHUNK,
        batch_invariant: bool = False,
        min_rows: int = 1,
        products: Products | None = None,
        view: Callable[[PreTrainedModel, Products], View] = ModelView,
        chains: bool = False,
    ) -> None:
        self.architecture = Architecture.from_model(model, batch_invariant, chains)
        self.prefill_chunk = prefill_chunk
        self.min_rows = min_rows
        self.products = fastest_products(model) if products is None else products
        self._model, self._view, self.chains = model, view, chains
        self._cache = SlotCache(self.architecture.layers)
        self._runner = ModelRunner(
            view(model, self.products), self.device, self.architecture, self._cache, self.products
        )
        self.mode = mode_of(model)
        self.uses_target_states = uses_target_states(model)
        self.kept_ids = kept_ids(model)
        self._vocabulary: SharedVocabulary | None = None
        self._pending: IntArray | None = None  # tokens of each sequence that the last forward fed
        self._requests: list[Request] = []
        self.slots = Slots(self._cache)

    @property
    def model(self) -> PreTrainedModel:
        """The transformers model."""
        return self._model

    @property
    def forward_seconds(self) -> float:
        """Wall-clock spent in the model so far (the device is not synchronised for it)."""
        return self._runner.seconds

    @property
    def vocab_size(self) -> int:
        """Ids that logits are about: the rows of the LM head; of a draft model that has a
        target, the rows of the target's.
        """
        return (
            self.architecture.vocab_size
            if self._vocabulary is None
            else self._vocabulary.target_rows
        )

    def share(self, vocabulary: SharedVocabulary) -> None:
        """Answer for a target from now on: with logits by the target's ids, of the tokens that both
        share.

        Raises:
            ConfigError: it serves a target with another vocabulary already.
        """
        if self._vocabulary is not None and self._vocabulary.target_rows != vocabulary.target_rows:
            raise ConfigError(
                f"draft model: got a target with {vocabulary.target_rows} rows in its LM head,"
                f" while it serves one with {self._vocabulary.target_rows}; expected targets with"
                " the same. Load the draft model again for this one."
            )
        self._vocabulary = self._runner.vocabulary = vocabulary
        kept = kept_ids(self._model)
        self.kept_ids = None if kept is None else kept[kept < vocabulary.common]

    @property
    def context_length(self) -> int:
        """Most tokens a sequence may have."""
        return self.architecture.context_length

    @property
    def stale(self) -> bool:
        """Whether the model's modules have been replaced, as by an adapter, since a sequence was
        opened last.
        """
        return self._runner.view.stale

    @property
    def takes_trees(self) -> bool:
        """Whether branching trees can be verified in one forward; else chains only."""
        return self.architecture.takes_trees

    @property
    def packs(self) -> bool:
        """Whether sequences of different widths share a forward without padding."""
        return self.architecture.by_position and self.architecture.takes_masks

    @property
    def device(self) -> torch.device:
        """Where token ids go in and logits come out."""
        device: torch.device = self._model.device
        return device

    def apart(self) -> CachedLM:
        """Return the same model with a cache of its own, for forwards that have nothing to do
        with anybody's answer.
        """
        options = (
            self.prefill_chunk,
            self.architecture.by_position,
            self.min_rows,
            self.products,
        )
        return CachedLM(self._model, *options, self._view, self.chains)

    def reserve(self, slots: int, positions: int) -> None:
        """Allocate for that many sequences of that many positions (tokens and tree nodes)
        beforehand.
        """
        self._cache.reserve(slots, positions)

    @property
    def capacity(self) -> int:
        """Positions allocated per sequence."""
        return self._cache.capacity

    @property
    def position_bytes(self) -> int:
        """Bytes of the cache that a position of a sequence takes; before the first forward by
        what the configuration says.
        """
        return self._cache.position_bytes or self.architecture.position_bytes

    def check_length(self, request: Request) -> None:
        """Hold a sequence against the model's context.

        Raises:
            CapacityError: it is longer.
        """
        if len(request) > self.context_length:
            raise CapacityError(
                f"sequence {request.id} has {len(request)} tokens; the model's context is"
                f" {self.context_length}. Shorten the prompt."
            )

    def open(self, request: Request, place_of: Request | None = None, length: int = 0) -> None:
        """Give `request` a slot.

        Args:
            place_of: a sequence that loses its own to `request`, with its first `length` positions.
        Raises:
            CapacityError: as `check_length`.
        """
        self.check_length(request)
        if self.stale:
            self._runner.view = self._view(self._model, self.products)
        if place_of is None:
            self.slots.take(request)
        else:
            self.slots.inherit(request, place_of, length)

    def close(self, request: Request) -> None:
        """Free the slot of `request`."""
        if request.tainted or request.failure is not None:
            self.rewind(request, 0)
            self.clear_behind(request)
        self.slots.free(request)

    def clear_behind(self, request: Request) -> None:
        """Write zeros behind what `request` has in the cache: attention multiplies what it masks
        by 0, and NaN stays NaN.
        """
        if request.slot >= 0:
            self._cache.clear(request.slot, request.cached)

    @property
    def open_sequences(self) -> int:
        """Sequences that own a slot."""
        return self._cache.taken

    def limit_tree(self, tree: DraftTree, request: Request) -> DraftTree:
        """Return the part of a draft tree that the model can verify behind the request.

        A model that takes chains only gets the best chain. No node may lie beyond the length at
        which all tokens get other rotary frequencies.
        """
        if (switch := self.architecture.restart_length) is not None:
            tree = cut_at_switch(tree, request, switch)
        return tree if self.takes_trees else tree.best_chain()

    def restart_if_due(self, request: Request) -> None:
        """Drop the cache of a request that has grown beyond a switch of rotary frequencies."""
        if (switch := self.architecture.restart_length) is not None:
            restart_beyond_switch(request, switch)

    def shares_prefix(self, request: Request, other: Request) -> bool:
        """Return True if equal first tokens of two requests have equal keys and values."""
        return same_rotary_frequencies(request, other, self.architecture.switch_lengths)

    def forward(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        reduced_logits: bool = False,
    ) -> Tensor:
        """Run `forward_nodes`.

        Args:
            requests, trees, reduced_logits: As there.
        Returns:
            logits [batch, 1 + width, vocab]: after the last fed token, then after each node; rows
            beyond a tree are padding.
        """
        return self.forward_nodes(requests, trees, reduced_logits=reduced_logits).padded()

    @in_forward_mode
    def forward_nodes(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
    ) -> NodeLogits:
        """One pass over the pending tokens (a chunk of them, while prefilling) and the tree of
        every sequence.

        Args:
            requests: Open requests with at least one pending token each.
            trees: One per request; empty for a request with more pending tokens than the chunk.
            prefill_chunk: Most pending tokens of a request; None = `prefill_chunk` of the model.
            reduced_logits: True for logits of a reduced vocabulary alone, in the order of
                `kept_ids`; without a reduced vocabulary, of all tokens. Default False.
        Returns:
            the logits after the last fed token of each, and after each node; rows of scored tokens
            come before them.
        """
        chunk = self.prefill_chunk if prefill_chunk is None else prefill_chunk
        self._requests = list(requests)
        self._runner.begin()
        self._runner.view.state.reduced_logits = reduced_logits
        if not self.architecture.takes_masks:
            return self._forward_rows(trees, chunk)
        self.slots.compact_slots(self._requests)
        counts = [1 + len(tree) for tree in trees]
        if self.packs:
            packing = pack(requests, trees, chunk, self.min_rows)
            self._read_target_states(packing)
            flat = self._shared(self._runner.packed(packing, self._requests))
            self._count(packing.pending, packing.nodes)
            return NodeLogits.from_rows(
                flat[: sum(counts) + int(packing.scored.sum())], counts, packing.scored.tolist()
            )
        layout = lay_out(requests, trees, chunk, self.min_rows)
        self._read_target_states(layout)
        flat = self._shared(self._runner.padded(layout, self._requests))
        self._count(layout.pending, layout.nodes)
        return NodeLogits.from_padded(flat.unflatten(0, (len(counts), -1)), counts, layout.scored)  # type: ignore[no-untyped-call]

    def forward_with_hidden(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        reduced_logits: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Run `forward`, and return what the LM head was fed as well.

        Args:
            requests, trees, reduced_logits: As in `forward_nodes`.
        Returns:
            logits [batch, 1 + width, vocab], and the hidden states they are made of (after the
            final norm), [batch, 1 + width, hidden].
        Raises:
            UnsupportedModelError: as `forward_with_states`.
        """
        logits = self.forward_with_states(requests, trees, reduced_logits=reduced_logits)
        assert logits.states is not None, "asked for"
        return logits.padded(), replace(logits, flat=logits.states[:, 0]).padded()

    def forward_with_states(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        layers: tuple[int, ...] = (),
        pending: bool = False,
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
    ) -> NodeLogits:
        """Run `forward_nodes`, and keep what the LM head was fed (after the final norm).

        Args:
            requests, trees, reduced_logits: As in `forward_nodes`.
            layers: of the decoder, whose inputs are wanted as well. pending: the same is wanted of
                all pending tokens.
        Raises:
            UnsupportedModelError: the model has no module that makes logits of hidden states, or
                hides its layers.
        """
        with capture_states(self._model, layers, pending) as fed:
            logits = self.forward_nodes(requests, trees, prefill_chunk, reduced_logits)
        if not fed.head:
            raise UnsupportedModelError(
                f"{self.architecture.name} makes its logits without an LM head of its own, so that"
                " its hidden states cannot be read; choose a drafter without an acceptance head."
            )
        runner = self._runner
        return fed.with_states(logits, runner.picks, runner.asked, runner.pending)

    def _read_target_states(self, batch: PaddedBatch | RaggedBatch) -> None:
        if self.uses_target_states:
            self._runner.view.state.target_states = states_to_read(self._requests, batch)

    def _forward_rows(self, trees: Sequence[DraftTree], chunk: int) -> NodeLogits:
        # Positions are slots in these models (ALiBi): rows of different length cannot share a
        # forward.
        layouts = [
            lay_out([request], [tree], chunk)
            for request, tree in zip(self._requests, trees, strict=True)
        ]
        rows = [
            self._runner.padded(layout, [request])
            for layout, request in zip(layouts, self._requests, strict=True)
        ]
        self._count(
            *(
                np.concatenate(one)
                for one in zip(*((one.pending, one.nodes) for one in layouts), strict=True)
            )
        )
        counts, scored = [1 + len(tree) for tree in trees], [layout.scored for layout in layouts]
        return NodeLogits.from_rows(self._shared(torch.cat(rows)), counts, scored)

    def _shared(self, flat: Tensor) -> Tensor:
        """Return logits [n, vocab] by the target's ids, or of the kept tokens alone where these
        are wanted.
        """
        if self._vocabulary is None:
            return flat
        kept = self.kept_ids if self._runner.view.state.reduced_logits else None
        return self._vocabulary.logits(flat, None if kept is None else len(kept))

    def _count(self, pending: IntArray, nodes: IntArray) -> None:
        self._pending = pending
        for request, fed in zip(self._requests, (pending + nodes).tolist(), strict=True):
            counters = request.counters
            counters.target_forwards += 1
            counters.prefill_forwards += len(request) == request.prompt_length
            counters.fed.append(fed)

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Keep the fed pending tokens and the accepted nodes of the last forward, in its order;
        drop the other nodes.
        """
        pending = self._pending
        assert pending is not None, "commit without forward"
        moves = [row for row, path in enumerate(accepted) if list(path) != list(range(len(path)))]
        if moves:
            longest = max(len(accepted[row]) for row in moves)
            paths = [
                [*accepted[row], *[accepted[row][-1]] * (longest - len(accepted[row]))]
                for row in moves
            ]
            base = np.array([[self._requests[row].cached + pending[row]] for row in moves])
            target = np.minimum(np.arange(longest), [[len(accepted[row]) - 1] for row in moves])
            self._cache.move(
                np.array([[self._requests[row].slot] for row in moves]),
                base + np.array(paths),
                base + target,
            )
        for row, (request, path) in enumerate(zip(self._requests, accepted, strict=True)):
            request.cached += int(pending[row]) + len(path)

    def rewind(self, request: Request, length: int) -> None:
        """Forget everything of `request` from position `length` on."""
        request.cached = min(request.cached, length)

    def load(self, request: Request, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Store states of `request` that were computed elsewhere; the caller sets `request.cached`
        once every layer has its own.

        Args:
            first: their first position. keys, values: [heads, n, dim].
        """
        self._cache.write(request.slot, layer, first, keys, values)

    def stored(self, request: Request) -> list[tuple[Tensor, Tensor] | None]:
        """Keys and values of `request` per layer, views [heads, seq.cached, dim]; None where a
        layer keeps none of its own.
        """
        return self._cache.read(request.slot, request.cached)

    def feed(self, requests: Sequence[Request]) -> Tensor:
        """Forward and commit without trees; logits [batch, 1, vocab] after the last fed token."""
        logits = self.forward(requests, [EMPTY_TREE] * len(requests))
        self.commit([()] * len(requests))
        return logits
