"""Run padded batches in one fixed shape."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from paceline.attention.fixed import BY_FIXED_SHAPE, takes_trees
from paceline.attention.tree import TreeVisibility
from paceline.backend.attention_metadata import mask_address, stand_in_mask
from paceline.core.tree import IntArray
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.fixed_shapes.bucket import Bucket, BucketArguments, BucketModel
from paceline.model.fixed_shapes.bucket_cache import (
    BucketCache,
    ColumnWriter,
    TorchWriter,
    TritonWriter,
)
from paceline.model.fixed_shapes.buckets import BucketKey
from paceline.model.fixed_shapes.inputs import BucketInputs
from paceline.model.fixed_shapes.masks import MaskBuilder, key_positions
from paceline.model.model_view import use_attention
from paceline.model.padded_batch import PaddedBatch


class PaddedBucket(Bucket):
    """Runs forward passes over padded batches in one fixed shape.

    Args:
        owner: Model to run.
        key: Shape of the forward passes.
        cache: KV cache, whose tensors must stay at the same addresses.
    """

    def __init__(self, owner: BucketModel, key: BucketKey, cache: SlotCache) -> None:
        super().__init__(owner, key)
        self._inputs = BucketInputs(key.rows, key.columns, owner.device)
        shape = key.rows, key.columns, key.positions
        self._builder = MaskBuilder(shape, owner.groups, owner.architecture.dtype, owner.device)
        self._stand_ins: dict[str, Tensor] = {}  # by kind of layer; empty for real masks
        positions = self._inputs.tensors.cache_positions
        slots = slice(key.first_slot, key.first_slot + key.rows)
        write: ColumnWriter
        if takes_trees(owner.device.type):
            self._stand_ins = {
                kind: stand_in_mask(key.columns, key.positions, owner.device)
                for kind in owner.architecture.layer_kinds
            }
            slots = slice(None)
            write = TritonWriter(positions, self._inputs.tensors.store_rows)
        else:
            write = TorchWriter(key, cache, positions)
        self._cache = BucketCache(cache, slots, key.positions, write)
        self._slot_cache = cache

    def fill(self, layout: PaddedBatch, token_ids: IntArray, positions: IntArray) -> None:
        """Write the inputs of a batch to the device; see `BucketInputs.fill`."""
        slots = layout.first_slot + np.arange(len(token_ids))
        self._inputs.fill(layout, token_ids, positions, self._slot_cache.rows_of(slots))

    def _prepare(self) -> BucketArguments:
        """Set the state that attention reads, and return the model's arguments."""
        use_attention(self._owner.view, BY_FIXED_SHAPE)
        inputs = self._inputs.tensors
        self._owner.view.state.metadata = None
        return BucketArguments(inputs.token_ids, inputs.positions, self._masks(), self._cache)

    def _masks(self) -> dict[str, Tensor]:
        """Return one mask per kind of layer.

        If attention reads `TreeVisibility` instead of masks, the masks are placeholders. The method
        then also sets the visible keys of each kind of layer in the attention state.
        """
        state, inputs = self._owner.view.state, self._inputs.tensors
        reaches = self._owner.architecture.reaches
        state.trees = {}
        if not self._stand_ins:
            return self._builder.masks(inputs, reaches)
        limited = any(reach.is_limited for reach in reaches.values())
        keys = key_positions(inputs) if limited else inputs.positions
        state.trees = {
            mask_address(self._stand_ins[kind]): TreeVisibility(
                inputs.cached,
                inputs.block,
                inputs.positions,
                keys,
                inputs.store_rows[:, 0].contiguous(),
                reach,
            )
            for kind, reach in reaches.items()
        }
        return self._stand_ins
