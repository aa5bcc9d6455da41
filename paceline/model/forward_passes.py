"""Run forward passes over the pending tokens and draft trees of a batch.

With batch-invariant attention, the requests in a batch are packed into one row (`RaggedBatch`).
Otherwise, each request has its own row. The row consists of padding, pending tokens (the newest is
the root), tree nodes and more padding, in this order. The pending tokens of all rows end at the
same column, so that the LM head runs on one slice of columns (`PaddedBatch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.node_logits import NodeLogits, TopLogits
from paceline.core.request import Request
from paceline.core.target_base import count_forward
from paceline.core.tree import DraftTree, IntArray
from paceline.errors import UnsupportedModelError
from paceline.model.cached_requests import CachedRequests
from paceline.model.eagle.captured_states import StateRequest, capture_states
from paceline.model.eagle.gather import states_to_read
from paceline.model.forward_mode import Mode, in_forward_mode
from paceline.model.mixers.chain_pass import ChainPass
from paceline.model.mixers.recurrent_batch import RecurrentBatch, recurrent_batch
from paceline.model.mixers.seam import RecurrentPass
from paceline.model.model_runner import ModelRunner
from paceline.model.padded_batch import PaddedBatch, lay_out
from paceline.model.ragged_batch import RaggedBatch, pack
from paceline.model.token_map import TokenMap
from paceline.model.vocabulary import SharedVocabulary


class ForwardPasses(CachedRequests):
    """Runs forward passes of one model.

    The derived class `CachedLM` sets the attributes.

    Attributes:
        prefill_chunk: Maximum number of pending tokens per request in one forward pass.
        min_rows: Minimum number of rows in a forward pass and in its LM head.
        mode: Function that returns the context manager in which forward passes run.
        uses_target_states: Whether this is a draft model that reads its target's hidden states.
        kept_ids: Token ids of the reduced vocabulary that the target also has, in ascending order;
            None if the vocabulary is not reduced.
    """

    prefill_chunk: int
    min_rows: int
    mode: Mode
    uses_target_states: bool
    kept_ids: IntArray | None
    _model: PreTrainedModel
    _runner: ModelRunner
    _vocabulary: SharedVocabulary | TokenMap | None

    @property
    def packs(self) -> bool:
        """Return True if a forward pass packs all requests into one row."""
        return self.architecture.by_position and self.architecture.takes_masks

    def forward(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        reduced_logits: bool = False,
    ) -> Tensor:
        """Run `forward_nodes`, and return the logits as one padded tensor.

        Args:
            requests: Open requests with at least one pending token each.
            trees: One draft tree per request.
            reduced_logits: Whether to return only the logits of the reduced vocabulary. Default
                False.
        Returns:
            Logits [batch, 1 + width, vocab] after the last pending token and after each node. The
            width is the number of nodes in the largest tree; smaller trees are padded.
        """
        return self.forward_nodes(requests, trees, reduced_logits=reduced_logits).padded()

    @in_forward_mode
    def forward_nodes(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
        num_top: int = 0,
    ) -> NodeLogits:
        """Run a forward pass over pending tokens and draft trees.

        Args:
            requests: Open requests with at least one pending token each.
            trees: One draft tree per request. The tree must be empty if the request's pending
                tokens exceed one prefill chunk.
            prefill_chunk: Maximum number of pending tokens per request; None means the model's
                `prefill_chunk`.
            reduced_logits: Whether to return only the logits of the reduced vocabulary, in the
                order in which `kept_ids` lists them. The option has no effect without a reduced
                vocabulary. Default False.
            num_top: Number of most likely tokens to find per row; 0 for none. Only a forward pass
                with a fixed shape finds them.
        Returns:
            For each request, the logits after its last pending token and after each node. If the
            request asks for `prompt_logprobs`, the logits that score prompt tokens come first.
        """
        chunk = self.prefill_chunk if prefill_chunk is None else prefill_chunk
        self._requests = list(requests)
        self._runner.begin()
        self._runner.view.state.reduced_logits = reduced_logits
        self._runner.num_top = num_top if self._has_target_ids else 0
        self._recurrent = []
        if not self.architecture.takes_masks:
            return self._forward_rows(trees, chunk)
        self.slots.compact_slots(self._requests)
        counts = [1 + len(tree) for tree in trees]
        if self.packs:
            packing = pack(requests, trees, chunk, self.min_rows)
            self._read_target_states(packing)
            self._begin_states(trees, packing)
            self._count(packing.pending, packing.nodes)
            flat = self._shared(self._runner.ragged(packing, self._requests))
            flat = flat[: sum(counts) + int(packing.scored.sum())]
            return self._with_top(NodeLogits.from_rows(flat, counts, packing.scored.tolist()))
        layout = lay_out(requests, trees, chunk, self.min_rows)
        self._read_target_states(layout)
        self._begin_states(trees, layout)
        self._count(layout.pending, layout.nodes)
        flat = self._shared(self._runner.padded(layout, self._requests))
        return self._with_top(NodeLogits.from_padded(flat, counts, layout.scored))

    def forward_with_hidden(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        reduced_logits: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Run `forward`, and also return the inputs to the LM head.

        Args:
            requests: Open requests with at least one pending token each.
            trees: One draft tree per request.
            reduced_logits: Whether to return only the logits of the reduced vocabulary. Default
                False.
        Returns:
            Logits [batch, 1 + width, vocab] and the hidden states after the final norm, [batch, 1
            + width, hidden]. The width is the number of nodes in the largest tree.
        Raises:
            UnsupportedModelError: The model computes its logits without an LM head.
        """
        logits = self.forward_with_states(requests, trees, reduced_logits=reduced_logits)
        assert logits.states is not None, "forward_with_states returns them"
        return logits.padded(), replace(logits, flat=logits.states[:, 0]).padded()

    def forward_with_states(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        layers: tuple[int, ...] = (),
        pending: bool = False,
        prefill_chunk: int | None = None,
        reduced_logits: bool = False,
        num_top: int = 0,
    ) -> NodeLogits:
        """Run `forward_nodes`, and also return the hidden states after the final norm.

        Args:
            requests: Open requests with at least one pending token each.
            trees: One draft tree per request.
            layers: Indices of decoder layers whose inputs are also returned.
            pending: Whether to return the states of all pending tokens as well.
            prefill_chunk: Maximum number of pending tokens per request; None means the model's
                `prefill_chunk`.
            reduced_logits: Whether to return only the logits of the reduced vocabulary. Default
                False.
            num_top: See `forward_nodes`.
        Raises:
            UnsupportedModelError: The model computes its logits without an LM head, or does not
                expose its layers.
        """
        runner = self._runner
        runner.states_wanted = StateRequest(layers, pending)
        try:
            with capture_states(self._model, runner.states_wanted) as captured:
                logits = self.forward_nodes(requests, trees, prefill_chunk, reduced_logits, num_top)
        finally:
            runner.states_wanted = None
        captured = runner.bucket_states or captured
        if not captured.head:
            raise UnsupportedModelError(
                f"{self.architecture.name} computes its logits without an LM head, so its hidden"
                " states cannot be read. Choose a drafter without an acceptance head."
            )
        return captured.with_states(logits, runner.picks, runner.column_picks, runner.pending)

    @property
    def _has_target_ids(self) -> bool:
        """Return whether `_shared` leaves the logits unchanged."""
        vocabulary = self._vocabulary
        return vocabulary is None or (
            isinstance(vocabulary, SharedVocabulary) and vocabulary.is_identity
        )

    def _with_top(self, logits: NodeLogits) -> NodeLogits:
        """Add the most likely tokens, if the forward pass has found them."""
        if self._runner.top is None:
            return logits
        token_ids = self.kept_ids if self._runner.view.state.reduced_logits else None
        top = TopLogits(*self._runner.top, token_ids)
        return replace(logits, top=top.rows(lambda found: found[: len(logits.flat)]))

    def _read_target_states(self, batch: PaddedBatch | RaggedBatch) -> None:
        if self.uses_target_states:
            self._runner.view.state.target_states = states_to_read(self._requests, batch)

    def _begin_states(self, trees: Sequence[DraftTree], layout: PaddedBatch | RaggedBatch) -> None:
        """Pass the tokens of the forward pass to the model's recurrent mixers, if any."""
        if self.architecture.states:
            self._begin_recurrent(recurrent_batch(self._requests, trees, layout))

    def _begin_recurrent(self, batch: RecurrentBatch) -> None:
        state = self._runner.view.state
        state.recurrent = RecurrentPass(batch, self._cache.state_layers, state.folds)
        self._recurrent.append(state.recurrent)

    def _forward_rows(self, trees: Sequence[DraftTree], chunk: int) -> NodeLogits:
        # Without masks, the order of the tokens in the cache determines what each token sees, so
        # rows of different lengths cannot share a forward pass.
        layouts = [
            lay_out([request], [tree], chunk)
            for request, tree in zip(self._requests, trees, strict=True)
        ]
        rows = [
            self._forward_row(layout, request, tree)
            for layout, request, tree in zip(layouts, self._requests, trees, strict=True)
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

    def _forward_row(self, layout: PaddedBatch, request: Request, tree: DraftTree) -> Tensor:
        """Run a forward pass for one request, and prepare to commit its recurrent states."""
        if not self.architecture.states:
            return self._runner.padded(layout, [request])
        if self.architecture.has_chain_mixers:  # mixers update all recurrent states
            self._begin_recurrent(recurrent_batch([request], [tree], layout))
            return self._runner.padded(layout, [request])
        chain = ChainPass(layout, self._cache.state_layers, self._model.device)
        logits = self._runner.padded(layout, [request])
        chain.finish()
        self._recurrent.append(chain)
        return logits

    def _shared(self, flat: Tensor) -> Tensor:
        """Convert a draft model's logits to the target's vocabulary.

        If only reduced logits are wanted, the result covers only `kept_ids`.
        """
        if self._vocabulary is None:
            return flat
        token_ids = self.kept_ids if self._runner.view.state.reduced_logits else None
        return self._vocabulary.logits(flat, None if token_ids is None else len(token_ids))

    def _count(self, pending: IntArray, nodes: IntArray) -> None:
        self._pending = pending.tolist()
        count_forward(self._requests, (pending + nodes).tolist())
