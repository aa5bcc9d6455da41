"""Run a transformers model over the pending tokens and draft trees of a batch.

Targets and draft models are both instances of `CachedLM`. With attention by position, the requests
in a batch are packed into one row (`RaggedBatch`). Otherwise, each request has its own row:
padding, pending tokens (the newest is the root), tree nodes, padding. The pending tokens of all
rows end at the same column, so that the LM head runs on one slice (`PaddedBatch`).
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
from paceline.core.settings import PREFILL_CHUNK, FixedShapes
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.kv_cache.settings import GRAPH_GROWTH_POSITIONS
from paceline.model.architecture import Architecture
from paceline.model.cached_requests import CachedRequests
from paceline.model.eagle.captured_states import StateRequest, capture_states
from paceline.model.eagle.gather import states_to_read
from paceline.model.eagle.modules import uses_target_states
from paceline.model.fixed_shapes.runner import fixed_shape_runner
from paceline.model.forward_mode import in_forward_mode, mode_of
from paceline.model.model_runner import ModelRunner
from paceline.model.model_view import ModelView, View
from paceline.model.padded_batch import PaddedBatch, lay_out
from paceline.model.ragged_batch import RaggedBatch, pack
from paceline.model.reduced_vocabulary import kept_ids
from paceline.model.vocabulary import SharedVocabulary


class CachedLM(CachedRequests):
    """A transformers model whose KV cache is divided into slots.

    Args:
        model: Decoder-only model in eval mode, on its device.
        prefill_chunk: Maximum number of a request's pending tokens in one forward pass. You may
            change it between forward passes.
        batch_invariant: Whether each token's attention must depend, bit for bit, only on its own
            text. Default False.
        min_rows: Minimum number of rows in a forward pass, and in its LM head; padding fills up
            smaller batches. Default 1.
        products: Matrix products for the forward passes; None selects the fastest on this machine.
        view: Function that returns a model's view with the given products.
        chains: Whether the model verifies only chains, although its forward method accepts masks.
            Default False.
        fixed_shapes: Whether decode forward passes run in a few fixed shapes, on CUDA as captured
            graphs; "auto" = on CUDA only.
    Attributes:
        prefill_chunk, min_rows, products, chains: As above.
        architecture: Facts about the model.
        mode: Context in which the forward passes run.
        slots: Cache slots and their requests.
        uses_target_states: True for a draft model that reads its target's hidden states
            (`Request.states`).
        kept_ids: Token ids in the reduced vocabulary that the target also has, in ascending order;
            None for all.
    Raises:
        UnsupportedModelError: The architecture cannot be rolled back or masked, or it cannot be
            batch-invariant as requested.
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
        fixed_shapes: FixedShapes = "auto",
    ) -> None:
        super().__init__(model, Architecture.from_model(model, batch_invariant, chains))
        self.prefill_chunk = prefill_chunk
        self.min_rows = min_rows
        self.products = fastest_products(model) if products is None else products
        self._model, self._view, self.chains = model, view, chains
        self._fixed_shapes = fixed_shapes
        self._runner = ModelRunner(
            view(model, self.products), self.device, self.architecture, self._cache, self.products
        )
        self._use_fixed_shapes()
        self.mode = mode_of(model)
        self.uses_target_states = uses_target_states(model)
        self.kept_ids = kept_ids(model)
        self._vocabulary: SharedVocabulary | None = None

    def _use_fixed_shapes(self) -> None:
        """Let the runner run decode forward passes of the current view in fixed shapes."""
        on_cuda = self.device.type == "cuda"
        if self._fixed_shapes is True or (self._fixed_shapes == "auto" and on_cuda):
            self._runner.fixed_shapes = fixed_shape_runner(
                self._model,
                self._runner.view,
                self.architecture,
                self._cache,
                self.products.fixed_rows,
            )

    @property
    def model(self) -> PreTrainedModel:
        """Return the transformers model."""
        return self._model

    @property
    def forward_seconds(self) -> float:
        """Return the time that the device has spent in the model so far."""
        return self._runner.timer.seconds

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids that logits cover."""
        return (
            self.architecture.vocab_size
            if self._vocabulary is None
            else self._vocabulary.target_rows
        )

    def share(self, vocabulary: SharedVocabulary) -> None:
        """Switch to returning logits over a target's vocabulary.

        Args:
            vocabulary: Tokens that this draft model and the target share.
        Raises:
            ConfigError: The draft model already serves a target with a different vocabulary.
        """
        if self._vocabulary is not None and self._vocabulary.target_rows != vocabulary.target_rows:
            raise ConfigError(
                f"draft model: got a target with {vocabulary.target_rows} rows in its LM head,"
                f" while it serves one with {self._vocabulary.target_rows}; expected targets with"
                " the same. Load the draft model again for this one."
            )
        self._vocabulary = self._runner.vocabulary = vocabulary
        reduced = kept_ids(self._model)
        self.kept_ids = None if reduced is None else reduced[reduced < vocabulary.common]

    @property
    def stale(self) -> bool:
        """Return True if modules were replaced since a request was last opened."""
        return self._runner.view.stale

    @property
    def packs(self) -> bool:
        """Return True if requests of different widths can share a pass without padding."""
        return self.architecture.by_position and self.architecture.takes_masks

    @property
    def device(self) -> torch.device:
        """Return the device of token ids and logits."""
        device: torch.device = self._model.device
        return device

    def apart(self) -> CachedLM:
        """Return the same model with a separate cache, for forward passes outside answers."""
        options = (
            self.prefill_chunk,
            self.architecture.by_position,
            self.min_rows,
            self.products,
        )
        return CachedLM(self._model, *options, self._view, self.chains, self._fixed_shapes)

    @property
    def growth_step(self) -> int:
        """Return the step in cache positions by which the cache should grow.

        An allocation ends the use of all captured graphs.
        """
        has_graphs = self._runner.fixed_shapes is not None and self.device.type == "cuda"
        return GRAPH_GROWTH_POSITIONS if has_graphs else 1

    def open(self, request: Request, slot_of: Request | None = None, length: int = 0) -> None:
        """Give a request a slot.

        Args:
            request: Request to process.
            slot_of: Finished request that hands over its slot; None for an empty slot.
            length: Number of leading cache positions that `request` takes over from `slot_of`.
        Raises:
            CapacityError: As in `check_length`.
        """
        self.check_length(request)
        if self.stale:
            self._runner.view = self._view(self._model, self.products)
            self._use_fixed_shapes()
        elif self._runner.fixed_shapes is not None:
            self._runner.fixed_shapes.check_weights()
        if slot_of is None:
            self.slots.take(request)
        else:
            self.slots.inherit(request, slot_of, length)

    def forward(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        reduced_logits: bool = False,
    ) -> Tensor:
        """Run `forward_nodes`, and return padded logits.

        Args:
            requests, trees, reduced_logits: As in `forward_nodes`.
        Returns:
            Logits [batch, 1 + width, vocab] after the last pending token and after each node; rows
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
        """Run a forward pass over pending tokens and draft trees.

        Args:
            requests: Open requests with at least one pending token each.
            trees: One draft tree per request; empty for a request with more pending tokens than the
                chunk.
            prefill_chunk: Maximum number of pending tokens per request; None = the model's
                `prefill_chunk`.
            reduced_logits: Whether to return logits only for the reduced vocabulary, in the order
                of `kept_ids`; without a reduced vocabulary, for all tokens. Default False.
        Returns:
            Logits after each request's last pending token and after each node, preceded by rows for
            scored tokens.
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
            flat = self._shared(self._runner.ragged(packing, self._requests))
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
        """Run `forward`, and also return the inputs to the LM head.

        Args:
            requests, trees, reduced_logits: As in `forward_nodes`.
        Returns:
            Logits [batch, 1 + width, vocab], and the hidden states after the final norm, [batch, 1
            + width, hidden].
        Raises:
            UnsupportedModelError: As in `forward_with_states`.
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
        """Run `forward_nodes`, and also return the hidden states after the final norm.

        Args:
            requests, trees, reduced_logits: As in `forward_nodes`.
            layers: Indices of decoder layers whose inputs are also returned.
            pending: Whether to return the states of all pending tokens as well.
            prefill_chunk: As in `forward_nodes`.
        Raises:
            UnsupportedModelError: The model computes its logits without an LM head, or does not
                expose its layers.
        """
        runner = self._runner
        runner.states_wanted = StateRequest(layers, pending)
        try:
            with capture_states(self._model, runner.states_wanted) as captured:
                logits = self.forward_nodes(requests, trees, prefill_chunk, reduced_logits)
        finally:
            runner.states_wanted = None
        captured = runner.bucket_states or captured
        if not captured.head:
            raise UnsupportedModelError(
                f"{self.architecture.name} makes its logits without an LM head of its own, so that"
                " its hidden states cannot be read; choose a drafter without an acceptance head."
            )
        return captured.with_states(logits, runner.picks, runner.column_picks, runner.pending)

    def _read_target_states(self, batch: PaddedBatch | RaggedBatch) -> None:
        if self.uses_target_states:
            self._runner.view.state.target_states = states_to_read(self._requests, batch)

    def _forward_rows(self, trees: Sequence[DraftTree], chunk: int) -> NodeLogits:
        # In these models (ALiBi), positions are columns, so rows of different lengths cannot share
        # a forward pass.
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
                np.concatenate(counts)
                for counts in zip(
                    *((layout.pending, layout.nodes) for layout in layouts), strict=True
                )
            )
        )
        counts, scored = [1 + len(tree) for tree in trees], [layout.scored for layout in layouts]
        return NodeLogits.from_rows(self._shared(torch.cat(rows)), counts, scored)

    def _shared(self, flat: Tensor) -> Tensor:
        """Return logits over the target's vocabulary, or its reduced form if requested."""
        if self._vocabulary is None:
            return flat
        token_ids = self.kept_ids if self._runner.view.state.reduced_logits else None
        return self._vocabulary.logits(flat, None if token_ids is None else len(token_ids))

    def _count(self, pending: IntArray, nodes: IntArray) -> None:
        self._pending = pending
        for request, count in zip(self._requests, (pending + nodes).tolist(), strict=True):
            counters = request.counters
            counters.target_forwards += 1
            counters.prefill_forwards += len(request) == request.prompt_length
            counters.query_tokens.append(count)

    def feed(self, requests: Sequence[Request]) -> Tensor:
        """Run and commit a forward pass without trees; return logits [batch, 1, vocab]."""
        logits = self.forward(requests, [EMPTY_TREE] * len(requests))
        self.commit([()] * len(requests))
        return logits
