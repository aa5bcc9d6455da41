"""Choose, build and drop the buckets (fixed shapes of forward passes) of a model."""

from __future__ import annotations

import warnings

from torch import nn
from transformers import PreTrainedModel

from paceline.attention.fixed import takes_trees
from paceline.core.settings import FixedShapes
from paceline.core.tree import IntArray
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.architecture import Architecture
from paceline.model.eagle.captured_states import StateRequest
from paceline.model.eagle.modules import uses_target_states
from paceline.model.fixed_shapes.bucket import Bucket, BucketModel
from paceline.model.fixed_shapes.buckets import BucketKey, packed_bucket, padded_bucket
from paceline.model.fixed_shapes.graphs import BucketGraphs
from paceline.model.fixed_shapes.output import BucketOutput
from paceline.model.fixed_shapes.packed_bucket import PackedBucket
from paceline.model.fixed_shapes.padded_bucket import PaddedBucket
from paceline.model.fixed_shapes.settings import COMPUTED_KEY_FIELDS, KEY_ALIGNMENT, MAX_TOKENS
from paceline.model.model_view import ModelView, is_steady
from paceline.model.padded_batch import PaddedBatch
from paceline.model.per_layer import key_shapes, layer_values
from paceline.model.ragged_batch import RaggedBatch


class FixedShapeRunner:
    """Runs a model's decode passes in fixed shapes, with captured graphs on CUDA.

    Args:
        model: The transformers model.
        view: The model's `ModelView`: a copy whose modules compute the forward passes.
        architecture: Properties of the model.
        cache: KV cache of the model.
        groups: Number of query heads per key head, the same in all layers.
        fixed_rows: Number of rows in every matrix product; 0 means any number.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        view: ModelView,
        architecture: Architecture,
        cache: SlotCache,
        groups: int,
        fixed_rows: int,
    ) -> None:
        self._fixed_rows = fixed_rows
        self._cache, self._generation = cache, cache.generation
        self._owner = BucketModel(model, view, architecture, groups, model.device)
        self._buckets: dict[BucketKey, Bucket] = {}
        self._weights = _addresses(model)
        self._graphs: BucketGraphs | None = None
        if model.device.type == "cuda" and all(map(_is_capturable, model.modules())):
            self._graphs = BucketGraphs(MAX_TOKENS)

    @property
    def num_graphs(self) -> int:
        """Return the number of buckets (fixed shapes) in use."""
        return len(self._buckets)

    def check_weights(self) -> None:
        """Drop all buckets (fixed shapes) if a weight has moved to another address."""
        addresses = _addresses(self._owner.model)
        if addresses != self._weights:
            self._drop_buckets()
            self._weights = addresses

    def run_padded(
        self,
        layout: PaddedBatch,
        token_ids: IntArray,
        positions: IntArray,
        states: StateRequest | None,
        num_top: int = 0,
    ) -> BucketOutput | None:
        """Run a padded batch in its bucket (fixed shape); return None if no bucket fits.

        Args:
            layout: Padded batch. The caller has already set the cache positions that the pass
                writes (`SlotCache.begin`).
            token_ids: Token ids in the model's vocabulary, [rows, columns].
            positions: Text positions within the model's context, [rows, columns].
            states: Hidden states that the caller needs, or None.
            num_top: Number of most likely tokens to find per column; 0 for none.
        """
        owner, cache = self._owner, self._cache
        reads_lengths = takes_trees(owner.device.type)
        reduced = owner.view.state.reduced_logits
        key = padded_bucket(layout, cache, reads_lengths, reduced, states, num_top)
        if key is None or not self._has_stores():
            return None
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = PaddedBucket(owner, key, cache)
        assert isinstance(bucket, PaddedBucket), "one kind per model"
        bucket.fill(layout, token_ids, positions)
        return self._run(bucket)

    def run_packed(
        self,
        packing: RaggedBatch,
        token_ids: IntArray,
        positions: IntArray,
        states: StateRequest | None,
        num_top: int = 0,
    ) -> BucketOutput | None:
        """Run a packed batch in its bucket (fixed shape); return None if no bucket fits.

        Args:
            packing: Packed batch. The caller has already set the cache positions that the pass
                writes (`SlotCache.begin`).
            token_ids: Token ids in the model's vocabulary, [queries].
            positions: Text positions within the model's context, [queries].
            states: Hidden states that the caller needs, or None.
            num_top: Number of most likely tokens to find per column; 0 for none.
        """
        owner, cache = self._owner, self._cache
        reduced = owner.view.state.reduced_logits
        key = packed_bucket(packing, cache, self._fixed_rows, reduced, states, num_top)
        if key is None or not self._has_stores():
            return None
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = PackedBucket(owner, key, cache)
        assert isinstance(bucket, PackedBucket), "one kind per model"
        return self._run(bucket) if bucket.fill(packing, token_ids, positions) else None

    def _has_stores(self) -> bool:
        """Return whether every layer has tensors for its keys and values.

        If the cache was reallocated, the method first drops all buckets, because they use the old
        addresses.
        """
        if self._generation != self._cache.generation:
            self._drop_buckets()
            self._generation = self._cache.generation
        return all(layer.is_initialized for layer in self._cache.layers)

    def _run(self, bucket: Bucket) -> BucketOutput:
        return bucket.run(self._graphs, self._stop_capturing)

    def _drop_buckets(self) -> None:
        self._buckets.clear()
        if self._graphs is not None:
            self._graphs.renew_pool()

    def _stop_capturing(self, reason: str) -> None:
        """Stop using CUDA graphs for this model, and warn."""
        self._graphs = None
        self._buckets.clear()
        warnings.warn(
            f"{self._owner.architecture.name}: the forward pass cannot be captured as a CUDA graph"
            f" ({reason}). It runs without graphs, more slowly.",
            stacklevel=2,
        )


def fixed_shape_runner(
    model: PreTrainedModel,
    view: ModelView,
    architecture: Architecture,
    cache: SlotCache,
    fixed_rows: int,
) -> FixedShapeRunner | None:
    """Return a runner for a model, or None if the model cannot run with fixed shapes.

    Models with recurrent layers cannot, because their operations depend on the number of tokens in
    each row.

    Args:
        model: The transformers model.
        view: The model's `ModelView`: a copy whose modules compute the forward passes.
        architecture: Properties of the model.
        cache: KV cache of the model.
        fixed_rows: Number of rows in every matrix product; 0 means any number.
    """
    groups = _groups(model)
    facts = architecture
    has_attention = takes_trees(model.device.type) if facts.by_position else facts.tree_attention
    possible = (
        has_attention
        and not facts.states
        and facts.takes_position_ids
        and groups is not None
        and view.state.text_lengths is None
        and not uses_target_states(model)
        and len({parameter.device for parameter in model.parameters()}) == 1
    )
    if not possible:
        return None
    assert groups is not None, "checked above"
    return FixedShapeRunner(model, view, architecture, cache, groups, fixed_rows)


def reads_regions(
    model: PreTrainedModel, architecture: Architecture, fixed_shapes: FixedShapes
) -> bool:
    """Return whether attention can read cache slots of different lengths.

    Batch-invariant attention and the CUDA kernel for fixed shapes can read such slots. SDPA cannot,
    because it would need a copy of the keys and values in every forward pass.

    Args:
        model: The transformers model.
        architecture: Properties of the model.
        fixed_shapes: Whether decode steps use fixed shapes; "auto" uses them on CUDA only.
    """
    config = model.config.get_text_config(decoder=True)
    if any(getattr(config, name, None) for name in COMPUTED_KEY_FIELDS):
        return False
    shapes = key_shapes(config)
    # Attention pads other heads, which moves their rows.
    if not shapes or any(dim % KEY_ALIGNMENT for _, dim in shapes):
        return False
    if architecture.by_position:
        return True
    return (
        fixed_shapes is not False
        and takes_trees(model.device.type)
        and architecture.tree_attention
        and architecture.takes_position_ids
        and not architecture.states
        and not architecture.switch_lengths
        and _groups(model) is not None
        and not uses_target_states(model)
    )


def _is_capturable(module: nn.Module) -> bool:
    """Return whether a module's operations are the same in all passes of one shape.

    Modules from other packages, such as adapters, may change between two forward passes.
    paceline's modules depend only on the fields of `BucketKey`.
    """
    return is_steady(module) or type(module).__module__.startswith("paceline.")


def _groups(model: PreTrainedModel) -> int | None:
    """Return the number of query heads per key head.

    The result is None if the number is unknown or differs between layers.
    """
    config = model.config.get_text_config(decoder=True)
    queries, keys = (
        layer_values(config, name) for name in ("num_attention_heads", "num_key_value_heads")
    )
    groups = {
        heads // (key_heads or heads) if isinstance(heads, int) else None
        for heads, key_heads in zip(queries, keys, strict=True)
    }
    return groups.pop() if len(groups) == 1 else None


def _addresses(model: PreTrainedModel) -> list[int]:
    return [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
