"""Run packed batches in one fixed shape, with batch-invariant attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.attention import BY_POSITION, AttentionMetadata
from paceline.attention.path_table import PathTable
from paceline.backend.attention_metadata import (
    RUN,
    VisibleRanges,
    mask_address,
    stand_in_mask,
)
from paceline.core.tree import IntArray
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.fixed_shapes.bucket import Bucket, BucketArguments, BucketModel
from paceline.model.fixed_shapes.bucket_cache import BucketCache, TritonWriter
from paceline.model.fixed_shapes.buckets import BucketKey
from paceline.model.fixed_shapes.inputs import SCRATCH
from paceline.model.fixed_shapes.upload import UploadBuffer
from paceline.model.model_view import use_attention
from paceline.model.ragged_batch import RaggedBatch

_INTS = 4  # token ids, positions, cache positions and rows of the stores
_INT_BYTES, _TABLE_BYTES = 8, 4


class PackedBucket(Bucket):
    """Runs forward passes over packed batches in one fixed shape, on CUDA with Triton.

    Args:
        owner: Model to run.
        key: Shape of the forward passes: `key.rows` requests, with `key.columns` tokens in total.
        cache: KV cache. Its tensors must stay at the same addresses.
    """

    def __init__(self, owner: BucketModel, key: BucketKey, cache: SlotCache) -> None:
        super().__init__(owner, key)
        self._slot_cache = cache
        tokens, kinds = key.columns, owner.architecture.layer_kinds
        self._table = PathTable(tokens, key.rows, owner.groups, key.positions)
        ints = _INT_BYTES * _INTS * tokens
        table_bytes = _TABLE_BYTES * self._table.size
        self._buffer = UploadBuffer(ints + table_bytes * len(kinds), owner.device)
        host, device = self._buffer.host, self._buffer.device
        self._arrays = host[:ints].view(torch.int64).view(_INTS, tokens).numpy()
        tensors = device[:ints].view(torch.int64).view(_INTS, 1, tokens)
        self._token_ids, self._positions = tensors[0], tensors[1]
        self._cache = BucketCache(
            cache, slice(None), key.positions, TritonWriter(tensors[2], tensors[3])
        )
        self._tables: dict[str, Any] = {}  # on the host
        self._masks: dict[str, Tensor] = {}
        self._metadata = _no_metadata()
        for number, kind in enumerate(kinds):
            part = slice(ints + number * table_bytes, ints + (number + 1) * table_bytes)
            self._tables[kind] = host[part].view(torch.int32).numpy()
            self._masks[kind] = stand_in_mask(tokens, key.positions, owner.device)
            paths = self._table.paths(device[part].view(torch.int32))
            self._add_paths(kind, paths)

    def _add_paths(self, kind: str, paths: dict[int, Any]) -> None:
        """Register the visible keys (`Paths`) of one kind of layer.

        Attention looks up these keys by the memory address of the layer's mask.
        """
        ranges = _no_ranges(self._key.columns)
        self._metadata.ranges_by_mask[mask_address(self._masks[kind])] = ranges
        self._metadata.derived[id(ranges)] = paths

    def fill(self, packing: RaggedBatch, token_ids: IntArray, positions: IntArray) -> bool:
        """Write the inputs of a batch; return False if its draft trees are too deep.

        Args:
            packing: Packed batch.
            token_ids: Token ids for the model, [queries].
            positions: Text positions within the model's context, [queries].
        """
        self._buffer.wait()
        reaches = self._owner.architecture.reaches
        rows = self._slot_cache.rows_of(packing.slots)  # first row of each query's slot
        order = packing.attention_metadata({}, rows[packing.starts[:-1]])
        for kind, table in self._tables.items():
            visible = packing.visible(reaches[kind])
            if not self._table.fill(table, visible, order):
                return False
        count, real = len(token_ids), int((packing.pending + packing.nodes).sum())
        ids, texts, cache_positions, slots = self._arrays
        # Columns without a token repeat a token of the batch, because the hidden states of an
        # arbitrary token may be NaN.
        ids[count:], texts[count:], cache_positions[real:], slots[count:] = (
            token_ids[0],
            0,
            SCRATCH,
            0,
        )
        ids[:count], texts[:count], slots[:count] = token_ids, positions, rows
        cache_positions[:real] = packing.cache_positions[:real]
        self._buffer.send()
        return True

    def _prepare(self) -> BucketArguments:
        """Set the state that attention reads, and return the model's arguments."""
        use_attention(self._owner.view, BY_POSITION)
        self._owner.view.state.metadata = self._metadata
        return BucketArguments(self._token_ids, self._positions, self._masks, self._cache)


def _no_metadata() -> AttentionMetadata:
    """Return metadata that lists no keys; attention finds the keys in `Paths`."""
    return AttentionMetadata(np.zeros(1, dtype=np.int64), np.zeros((1, 0), dtype=np.int64), 0)


def _no_ranges(queries: int) -> VisibleRanges:
    """Return empty visible ranges: no query sees any key."""
    begin = np.zeros(queries + 1, dtype=np.int64)
    starts = np.array([0, queries])
    return VisibleRanges(np.empty(0, dtype=RUN), begin, starts, queries, packed=True)
