"""Copy keys and values between a `CachedLM` and a transformers `DynamicCache`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import DynamicCache

from paceline.integrations.transformers.rows import RowRequest
from paceline.model.cached_lm import CachedLM


def load_cache(model: CachedLM, rows: Sequence[RowRequest], cache: DynamicCache, past: int) -> None:
    """Copy the first `past` columns of a transformers cache to the slots of the rows.

    A column is a token position of the padded batch; padding is not copied. A sliding-window layer
    of the cache contains only the last columns. Zeros replace older columns, which no later window
    includes.
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
    """Append the columns from `past` to `total` - 1 of every row to `cache`.

    A column is a token position of the padded batch. Columns of padding tokens are filled with
    zeros.

    Args:
        model: Model whose cache slots contain the rows.
        rows: Rows in batch order. The slot of each row contains the keys and values of the tokens
            before column `total`.
        cache: Cache to extend.
        past: Number of columns that are already in the cache.
        total: Number of columns that are in the cache afterwards.
    """
    stored = [model.stored(row) for row in rows]
    for index, states in enumerate(zip(*stored, strict=True)):
        if states[0] is not None:
            keys, values = ([pair[part] for pair in states if pair is not None] for part in (0, 1))
            cache.update(
                _columns(rows, keys, past, total), _columns(rows, values, past, total), index
            )


def _columns(rows: Sequence[RowRequest], states: Sequence[Tensor], past: int, total: int) -> Tensor:
    """Arrange the rows' states [heads, n, dim] as the columns of a padded batch.

    The result has the shape [batch, heads, total - past, dim].
    """
    heads, _, dim = states[0].shape
    result = states[0].new_zeros(len(rows), heads, total - past, dim)
    for index, (row, row_states) in enumerate(zip(rows, states, strict=True)):
        start = max(past, row.padding)
        result[index, :, start - past :] = row_states[:, start - row.padding : total - row.padding]
    return result
