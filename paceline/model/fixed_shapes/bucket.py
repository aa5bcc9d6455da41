"""Run the forward passes of one bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.attention.fixed import BY_FIXED_SHAPE, takes_trees
from paceline.attention.tree import TreeInputs
from paceline.backend.attention_metadata import mask_address, stand_in_mask
from paceline.core.tree import IntArray
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.architecture import Architecture
from paceline.model.eagle.captured_states import capture_states
from paceline.model.fixed_shapes.bucket_cache import BucketCache
from paceline.model.fixed_shapes.buckets import BucketKey
from paceline.model.fixed_shapes.graphs import CapturedForward, GraphMemory
from paceline.model.fixed_shapes.inputs import BucketInputs
from paceline.model.fixed_shapes.masks import MaskBuilder, key_positions
from paceline.model.fixed_shapes.output import BucketOutput
from paceline.model.fixed_shapes.settings import USES_BEFORE_CAPTURE
from paceline.model.model_view import View
from paceline.model.padded_batch import PaddedBatch


@dataclass(frozen=True, slots=True)
class BucketModel:
    """Model whose forward passes run in buckets.

    Attributes:
        model: The transformers model.
        view: View of the model.
        architecture: Facts about the model.
        groups: Query heads per key head.
        device: Device of the inputs.
    """

    model: PreTrainedModel
    view: View
    architecture: Architecture
    groups: int
    device: torch.device


class Bucket:
    """Forward passes of one shape.

    Args:
        owner: The model.
        key: The shape.
        cache: KV cache; its stores must stay where they are.
    """

    def __init__(self, owner: BucketModel, key: BucketKey, cache: SlotCache) -> None:
        self._owner, self._key = owner, key
        self._inputs = BucketInputs(key.rows, key.columns, owner.device)
        tensors = self._inputs.tensors
        self._cache = BucketCache(cache, key, tensors.cache_positions)
        shape = key.rows, key.columns, key.positions
        self._builder = MaskBuilder(shape, owner.groups, owner.architecture.dtype, owner.device)
        self._stand_ins: dict[str, Tensor] = {}  # by kind of layer; empty for real masks
        if takes_trees(owner.device.type):
            self._stand_ins = {
                kind: stand_in_mask(key.columns, key.positions, owner.device)
                for kind in owner.architecture.layer_kinds
            }
        self._captured: CapturedForward | None = None
        self._uses = 0

    def run(
        self,
        layout: PaddedBatch,
        token_ids: IntArray,
        positions: IntArray,
        memory: GraphMemory | None,
    ) -> BucketOutput:
        """Run a forward pass.

        Args:
            layout: Padded batch.
            token_ids: As in `BucketInputs.fill`.
            positions: As in `BucketInputs.fill`.
            memory: Memory of graphs; None to run without capturing.
        Raises:
            RuntimeError: An operation cannot be captured.
        """
        self._inputs.fill(layout, token_ids, positions)
        self._uses += 1
        if memory is None or self._uses <= USES_BEFORE_CAPTURE:
            return self._forward()
        if self._captured is None:
            self._captured = memory.capture(self._forward)
        return self._captured.replay()

    def _forward(self) -> BucketOutput:
        owner, key = self._owner, self._key
        view, arch, tensors = owner.view, owner.architecture, self._inputs.tensors
        if view.config._attn_implementation != BY_FIXED_SHAPE:
            view.config._attn_implementation = BY_FIXED_SHAPE
        view.state.metadata = None
        self._cache.begin()
        masks = self._masks()
        inputs: dict[str, Any] = {
            "input_ids": tensors.token_ids,
            "position_ids": tensors.positions,
            "attention_mask": masks if arch.mask_per_kind else next(iter(masks.values())),
            view.cache_argument: self._cache,
            "use_cache": True,
        }
        if key.states is None:
            return BucketOutput(view.module(**inputs).logits, None)
        with capture_states(owner.model, key.states) as states:
            logits = view.module(**inputs).logits
        return BucketOutput(logits, states)

    def _masks(self) -> dict[str, Tensor]:
        """Return one mask per kind of layer, and set what attention reads instead of it."""
        state, inputs = self._owner.view.state, self._inputs.tensors
        reaches = self._owner.architecture.reaches
        state.trees = {}
        if not self._stand_ins:
            return self._builder.masks(inputs, reaches)
        limited = any(reach.is_limited for reach in reaches.values())
        keys = key_positions(inputs) if limited else inputs.positions
        state.trees = {
            mask_address(self._stand_ins[kind]): TreeInputs(
                inputs.cached, inputs.block, inputs.positions, keys, reach
            )
            for kind, reach in reaches.items()
        }
        return self._stand_ins
