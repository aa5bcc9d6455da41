"""Run a transformers model over a padded or ragged batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.attention import BY_POSITION, BY_SDPA, AttentionMetadata
from paceline.backend.products import Products
from paceline.core.request import Request
from paceline.core.tree import IntArray
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.architecture import Architecture, Masks
from paceline.model.eagle.captured_states import CapturedStates, StateRequest
from paceline.model.fixed_shapes.output import BucketOutput
from paceline.model.fixed_shapes.runner import FixedShapeRunner
from paceline.model.model_view import ModelView, use_attention
from paceline.model.padded_batch import PaddedBatch
from paceline.model.ragged_batch import RaggedBatch
from paceline.model.token_map import TokenMap
from paceline.model.vocabulary import SharedVocabulary
from paceline.util.device_timer import DeviceTimer


class ModelRunner:
    """Runs the forward passes of one model with one KV cache.

    Args:
        view: `ModelView` of the model; its modules compute the forward passes.
        device: Device of the inputs.
        architecture: Properties of the model.
        cache: Cache to which keys and values are written.
        products: Implementation of matrix products and norms.
    Attributes:
        view: `ModelView` of the model; replaced when it becomes stale.
        timer: Measures the time that the device spends in the model.
        fixed_shapes: Runner of forward passes with fixed shapes, or None.
        states_wanted: Hidden states to capture in the current forward pass.
        num_top: Number of most likely tokens that the current forward pass finds per row if it
            runs with a fixed shape; 0 for none.
        top: Columns and probabilities of these tokens, each [rows, num_top]; None if not found.
        bucket_states: Captured states of the current forward pass, if it ran with a fixed shape.
        picks: For each call of the model, a function that selects the requested rows from the LM
            head's inputs or outputs: [rows, columns, n] to [selected, n]. A forward pass may
            consist of several calls.
        column_picks: For each call, a function that selects the same rows from tensors with all
            columns of the forward pass.
        pending: For each call and request, the row and the first and last columns of the pending
            tokens.
        vocabulary: Vocabulary that a draft model shares with its target; None if the model may
            receive any token id.
    """

    def __init__(
        self,
        view: ModelView,
        device: torch.device,
        architecture: Architecture,
        cache: SlotCache,
        products: Products,
    ) -> None:
        self.view = view
        self.timer = DeviceTimer(device)
        self.fixed_shapes: FixedShapeRunner | None = None
        self.states_wanted: StateRequest | None = None
        self.num_top = 0
        self.top: tuple[Tensor, Tensor] | None = None
        self.bucket_states: CapturedStates | None = None
        self.picks: list[Callable[[Tensor], Tensor]] = []
        self.column_picks: list[Callable[[Tensor], Tensor]] = []
        self.pending: list[list[tuple[int, int, int]]] = []
        self.vocabulary: SharedVocabulary | TokenMap | None = None
        self._offsets: IntArray | None = None  # from text to model positions, for each token
        self._architecture, self._cache, self._products = architecture, cache, products
        self._device = device
        self._implementation = view.config._attn_implementation  # for forward passes without a mask

    def begin(self) -> None:
        """Discard the row selectors and captured states of the last forward pass."""
        self.picks.clear()
        self.column_picks.clear()
        self.pending.clear()
        self.bucket_states = self.top = None

    def padded(self, layout: PaddedBatch, requests: Sequence[Request]) -> Tensor:
        """Run a padded batch, and return logits [rows * num_logit_columns, vocab]."""
        state = self.view.state
        if state.text_lengths is not None:
            state.text_lengths.set(requests, layout.positions)
        offsets = _position_offsets(requests)
        self._offsets = None if offsets is None else offsets[:, None]
        columns, keep, front = (
            layout.token_ids.shape[1],
            layout.num_logit_columns,
            layout.token_ids.shape[1] - layout.width,
        )
        rows = np.arange(len(layout.token_ids))[:, None]
        self._cache.begin(
            layout.first_slot,
            len(rows),
            layout.first_slot + rows,
            layout.cache_positions,
            layout.in_order,
        )
        self.pending.append(
            [(row, front - count, front - 1) for row, count in enumerate(layout.pending.tolist())]
        )
        output = self._run_bucket(layout)
        if output is not None:
            wanted = slice(0, len(rows)), slice(columns - keep, columns)
            # A copy, because the next forward pass overwrites the output.
            self.picks.append(lambda states: states[wanted].flatten(0, 1).clone())
            self.column_picks.append(self.picks[-1])
            return self._picked(output)
        mask = self._architecture.attention_mask(layout, self._cache.window.visible, self._device)
        self.picks.append(
            (lambda states: states.flatten(0, 1))
            if keep == columns
            else (lambda states: states[:, -keep:].flatten(0, 1))
        )
        self.column_picks.append(self.picks[-1])
        self._set_attention(layout, mask is not None)
        return self._call(
            layout.token_ids, layout.positions, mask, np.arange(columns - keep, columns)
        )

    def ragged(self, packing: RaggedBatch, requests: Sequence[Request]) -> Tensor:
        """Run a ragged batch, and return the logits of its `logit_queries`, [n, vocab]."""
        state = self.view.state
        if state.text_lengths is not None:
            state.text_lengths.set(requests, packing.positions[None], np.diff(packing.starts))
        offsets = _position_offsets(requests)
        self._offsets = None if offsets is None else np.repeat(offsets, np.diff(packing.starts))
        head_gets_picked = self._architecture.takes_logits_to_keep
        queries = torch.from_numpy(packing.logit_queries).to(self._device, non_blocking=True)
        starts, counts = packing.starts.tolist(), packing.pending.tolist()
        self.pending.append(
            [(0, start, start + count - 1) for start, count in zip(starts, counts, strict=False)]
        )
        self.column_picks.append(lambda states: states[0, queries])
        output = self._run_packed(packing)
        if output is not None:
            self.picks.append(self.column_picks[-1])
            return self._picked(output)
        self._begin_packed(packing, len(packing.slots))
        masks, visible_ranges = self._architecture.ragged_masks(
            packing, self._cache.window.visible, self._device
        )
        self.picks.append((lambda states: states[0]) if head_gets_picked else self.column_picks[-1])
        use_attention(self.view, BY_POSITION)
        state.metadata = packing.attention_metadata(visible_ranges, self._cache.window.key_rows)
        return self._call(
            packing.token_ids[None], packing.positions[None], masks, packing.logit_queries
        )

    def _picked(self, output: BucketOutput) -> Tensor:
        """Return the requested rows of the logits, and keep the other results."""
        self.bucket_states, pick = output.states, self.picks[-1]
        if output.top is not None:
            self.top = pick(output.top[0]), pick(output.top[1])
        return pick(output.logits)

    def _run_bucket(self, layout: PaddedBatch) -> BucketOutput | None:
        """Run a padded batch with a fixed shape; return None if no fixed shape fits."""
        # A fixed shape's masks would read shifted positions.
        if self.fixed_shapes is None or self._offsets is not None:
            return None
        token_ids, positions = self._inputs(layout.token_ids, layout.positions)
        with self.timer:
            return self.fixed_shapes.run_padded(
                layout, token_ids, positions, self.states_wanted, self.num_top
            )

    def _run_packed(self, packing: RaggedBatch) -> BucketOutput | None:
        """Run a packed batch with a fixed shape; return None if no fixed shape fits."""
        if self.fixed_shapes is None or self._offsets is not None:
            return None
        self._begin_packed(packing, int((packing.pending + packing.nodes).sum()))
        token_ids, positions = self._inputs(packing.token_ids, packing.positions)
        with self.timer:
            return self.fixed_shapes.run_packed(
                packing, token_ids, positions, self.states_wanted, self.num_top
            )

    def _begin_packed(self, packing: RaggedBatch, count: int) -> None:
        """Prepare the cache for the first `count` queries of a packed batch."""
        num_requests = len(packing.cached)
        self._cache.begin(
            int(packing.slots[0]),
            num_requests,
            packing.slots[None, :count],
            packing.cache_positions[None, :count],
            num_requests == 1,
        )

    def _inputs(self, token_ids: IntArray, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Convert token ids and text positions to those that the model expects.

        Token ids that a draft model lacks are replaced, and positions are clipped to the context
        length. Finally, the positions of tokens that follow images are shifted.
        """
        if self.vocabulary is not None:
            token_ids = self.vocabulary.readable(token_ids)
        # Nodes beyond the context are never accepted.
        positions = np.minimum(positions, self._architecture.context_length - 1)
        return token_ids, positions if self._offsets is None else positions + self._offsets

    def _call(
        self, token_ids: IntArray, positions: IntArray, mask: Masks, logit_columns: IntArray
    ) -> Tensor:
        arch, device = self._architecture, self._device
        token_ids, positions = self._inputs(token_ids, positions)
        inputs: dict[str, Any] = {
            "input_ids": torch.from_numpy(token_ids).to(device, non_blocking=True),
            "attention_mask": mask,
            self.view.cache_argument: self._cache,
            "use_cache": True,
        }
        if arch.takes_position_ids:
            inputs["position_ids"] = torch.from_numpy(positions).to(device, non_blocking=True)
        if arch.takes_logits_to_keep:
            # With indices, the LM head multiplies all rows in one product. With a count, it would
            # multiply one slice per request.
            inputs["logits_to_keep"] = torch.from_numpy(logit_columns).to(device, non_blocking=True)
        team = self._products.thread_team(token_ids.size) if arch.by_position else nullcontext()
        self.view.state.grouped = {}
        with self.timer, team:
            logits: Tensor = self.view.module(**inputs).logits
        self.view.state.grouped = None
        return self.picks[-1](logits)

    def _set_attention(self, layout: PaddedBatch, masked: bool) -> None:
        """Choose the attention function for a padded forward pass, and set its inputs.

        Args:
            layout: Padded batch.
            masked: Whether the forward pass receives a mask.
        """
        arch, state = self._architecture, self.view.state
        state.num_causal, state.metadata = 0, None
        if arch.by_position:
            use_attention(self.view, BY_POSITION)
            state.metadata = AttentionMetadata.from_columns(
                layout.cached, layout.cache_positions, layout.positions, layout.padding
            )
        elif arch.tree_attention:
            use_attention(self.view, BY_SDPA if masked else self._implementation)
            if masked and arch.layer_kinds == ("full_attention",):
                state.num_causal = layout.causal


def _position_offsets(requests: Sequence[Request]) -> IntArray | None:
    """Return each request's model position minus its text position, [requests].

    Images shift the positions of later tokens. The result is None if all differences are 0.
    """
    offsets = [request.position_offset for request in requests]
    return np.array(offsets, dtype=np.int64) if any(offsets) else None
