"""Key/value states between the slots of a `CachedLM` and a transformers `DynamicCache`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import DynamicCache

from paceline.integrations.transformers.rows import RowRequest
from paceline.model.cached_lm import CachedLM


def load_cache(model: CachedLM, rows: Sequence[RowRequest], cache: DynamicCache, past: int) -> None:
    """Copy the `past` columns of a cache into the slots of the rows, without their padding.

    A sliding-window layer holds its last columns only; what is missing is outside every later
    window, so zeros stand for it.
    """
    for row in rows:
        for index, layer in enumerate(cache.layers):
            keys = getattr(layer, "keys", None)
            if keys is None:
                continue
            first_column = past - keys.shape[-2]
            start = max(row.padding, first_column)
            if start < past:
                states = (
                    store[row.place, :, start - first_column :] for store in (keys, layer.values)
                )
                model.load(row, index, start - row.padding, *states)
        row.cached = max(0, past - row.padding)


def fill_cache(
    model: CachedLM, rows: Sequence[RowRequest], cache: DynamicCache, past: int, total: int
) -> None:
    """Append the columns past .. total - 1 of all rows to a cache; padding columns are zeros.

    Args:
        rows: in their order in the batch, each with its tokens up to column `total` in its slot.
    """
    stored = [model.stored(row) for row in rows]
    for index, states in enumerate(zip(*stored, strict=True)):
        if states[0] is not None:
            keys, values = ([one[part] for one in states if one is not None] for part in (0, 1))
            cache.update(
                _columns(rows, keys, past, total), _columns(rows, values, past, total), index
            )


def _columns(rows: Sequence[RowRequest], states: Sequence[Tensor], past: int, total: int) -> Tensor:
    """[batch, heads, total - past, dim] of per-row states [heads, n, dim]."""
    heads, _, dim = states[0].shape
    result = states[0].new_zeros(len(rows), heads, total - past, dim)
    for place, (row, mine) in enumerate(zip(rows, states, strict=True)):
        start = max(past, row.padding)
        result[place, :, start - past :] = mine[:, start - row.padding : total - row.padding]
    return result
