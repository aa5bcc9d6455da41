"""Choose the bucket (the fixed shape) for a forward pass."""

from __future__ import annotations

from typing import NamedTuple

from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.eagle.captured_states import StateRequest
from paceline.model.fixed_shapes.settings import (
    COLUMNS,
    MAX_TOKENS,
    MIN_PACKED_TOKENS,
    MIN_POSITIONS,
    MIN_POSITIONS_BY_LENGTH,
    POSITIONS_RATIO,
    POSITIONS_RATIO_BY_LENGTH,
)
from paceline.model.padded_batch import PaddedBatch
from paceline.model.ragged_batch import RaggedBatch


class BucketKey(NamedTuple):
    """Shape of a forward pass, and everything else that determines its operations.

    Attributes:
        rows: Number of rows, including empty ones.
        columns: Number of columns per row; in a packed batch, the total number of columns.
        positions: Number of cache positions that attention reads.
        first_slot: KV-cache slot of row 0; 0 if the forward pass reads the slots from its inputs.
        reduced_logits: Whether the LM head returns logits of the reduced vocabulary only.
        states: Hidden states that the caller reads, or None.
        num_top: Number of most likely tokens to find per column; 0 for none.
    """

    rows: int
    columns: int
    positions: int
    first_slot: int
    reduced_logits: bool
    states: StateRequest | None
    num_top: int


def padded_bucket(
    layout: PaddedBatch,
    cache: SlotCache,
    reads_lengths: bool,
    reduced_logits: bool,
    states: StateRequest | None,
    num_top: int,
) -> BucketKey | None:
    """Return the bucket (fixed shape) for a padded batch; None if no bucket fits it.

    Args:
        layout: Padded batch.
        cache: KV cache, prepared for the tokens of this batch.
        reads_lengths: Whether attention reads text lengths from device memory instead of using a
            mask.
        reduced_logits: Whether the LM head returns logits of the reduced vocabulary only.
        states: Hidden states that the caller reads, or None.
        num_top: Number of most likely tokens to find per column; 0 for none.
    """
    num_rows, num_columns = layout.token_ids.shape
    columns = next((size for size in COLUMNS if size >= num_columns), None)
    if columns is None:
        return None
    rows = 1 << (num_rows - 1).bit_length()
    first_slot = 0 if reads_lengths else layout.first_slot
    beyond = not reads_lengths and first_slot + rows > cache.slots
    if beyond or rows * columns > MAX_TOKENS:
        rows = num_rows
    if rows * columns > MAX_TOKENS:
        return None
    positions = min(
        _position_bucket(cache.window.visible, reads_lengths), cache.allocated.positions
    )
    return BucketKey(rows, columns, positions, first_slot, reduced_logits, states, num_top)


def packed_bucket(
    packing: RaggedBatch,
    cache: SlotCache,
    fixed_rows: int,
    reduced_logits: bool,
    states: StateRequest | None,
    num_top: int,
) -> BucketKey | None:
    """Return the bucket (fixed shape) for a packed batch; None if no bucket fits it.

    Args:
        packing: Packed batch.
        cache: KV cache, prepared for the tokens of this batch.
        fixed_rows: Number of rows in every matrix product. The number of tokens in the bucket is a
            multiple of `fixed_rows`.
        reduced_logits: Whether the LM head returns logits of the reduced vocabulary only.
        states: Hidden states that the caller reads, or None.
        num_top: Number of most likely tokens to find per column; 0 for none.
    """
    step = fixed_rows or MIN_PACKED_TOKENS
    tokens = step
    while tokens < len(packing.token_ids):
        tokens *= 2
    if tokens > MAX_TOKENS:
        return None
    rows = 1 << (len(packing.cached) - 1).bit_length()
    positions = min(_position_bucket(cache.window.visible, True), cache.allocated.positions)
    return BucketKey(rows, tokens, positions, 0, reduced_logits, states, num_top)


def _position_bucket(visible: int, reads_lengths: bool) -> int:
    """Return the smallest fixed number of cache positions that is at least `visible`."""
    size, ratio = (
        (MIN_POSITIONS_BY_LENGTH, POSITIONS_RATIO_BY_LENGTH)
        if reads_lengths
        else (MIN_POSITIONS, POSITIONS_RATIO)
    )
    while size < visible:
        size *= ratio
    return size
