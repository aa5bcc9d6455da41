"""Slow reference for attention by position.

It has the summation order of the compiled kernel.

`Columns` holds a text with fixed queries, keys and values that attention functions receive in any
layout. `row_by_row` makes a model multiply one row at a time, so that only attention can depend on
the layout.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.attention import AttentionMetadata
from paceline.attention.reach import Reach
from paceline.core.tree import tree_shape
from paceline.model.padded_batch import PaddedBatch


def slow_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: list[int],
    scaling: float,
    softcap: float | None = None,
    sink: float | None = None,
) -> Tensor:
    """Return attention of one query [dim] over visible keys, in position order."""
    q = query.float().numpy() * np.float32(scaling)
    scores = []
    for position in visible:
        k = key[position].float().numpy()
        lanes = np.zeros(8, dtype=np.float32)
        for d in range(len(k)):
            lanes[d % 8] = _fused(q[d], k[d], lanes[d % 8])
        scores.append(_add_lanes(lanes))
    if softcap is not None:
        scores = [np.float32(softcap * np.tanh(score / softcap)) for score in scores]
    largest = max([*scores, *([] if sink is None else [np.float32(sink)])], default=np.float32(0.0))
    weights = [np.exp(score - largest) for score in scores]
    lanes = np.zeros(8, dtype=np.float32)
    for rank, weight in enumerate(weights):
        lanes[rank % 8] += weight
    total = _add_lanes(lanes) + (0 if sink is None else np.exp(np.float32(sink) - largest))
    output = np.zeros(value.shape[1], dtype=np.float32)
    for position, weight in zip(visible, weights, strict=True):
        output = _fused(weight, value[position].float().numpy(), output)
    return torch.from_numpy(output / total if visible else output)


def _fused(a: Any, b: Any, c: Any) -> Any:
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def _add_lanes(lanes: np.ndarray) -> np.float32:
    fours = lanes[:4] + lanes[4:]
    twos = fours[:2] + fours[2:]
    return np.float32(twos[0] + twos[1])


class Columns:
    """Random queries, keys and values for a layout and the tokens before it.

    Args:
        shape: Numbers of query heads, key heads, dim and value dim.
    """

    def __init__(
        self,
        layout: PaddedBatch,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        seed: int = 0,
    ) -> None:
        heads, key_heads, dim, value_dim = shape
        rows, columns = layout.token_ids.shape
        chance = torch.Generator().manual_seed(seed)
        self.layout = layout
        self.visible = int(layout.cache_positions.max()) + 1
        # Lay out columns as models do. Fill unused cache positions with NaN: they must not matter.
        self.query = _heavy(chance, rows, columns, heads, dim).to(dtype).transpose(1, 2)
        self.key = torch.full((rows, key_heads, self.visible, dim), torch.nan, dtype=dtype)
        self.value = torch.full((rows, key_heads, self.visible, value_dim), torch.nan, dtype=dtype)
        for row, cached in enumerate(layout.cached.tolist()):
            used = torch.cat([torch.arange(cached), torch.from_numpy(layout.cache_positions[row])])
            self.key[row, :, used] = _heavy(chance, key_heads, len(used), dim).to(dtype)
            self.value[row, :, used] = torch.randn(
                key_heads, len(used), value_dim, generator=chance
            ).to(dtype)

    @property
    def order(self) -> AttentionMetadata:
        """Return the keys ordered by position."""
        return AttentionMetadata.from_columns(
            self.layout.cached,
            self.layout.cache_positions,
            self.layout.positions,
            self.layout.padding,
        )

    def mask(self, window: int | None = None) -> Tensor:
        """Return which cache positions columns see, [rows, 1, columns, positions]."""
        return torch.from_numpy(self.layout.visible_mask(self.visible, Reach(window)))[:, None]

    def path(self, row: int, column: int, window: int | None = None) -> list[int]:
        """Return the cache positions that a column sees, in text order.

        The column must not be padding.
        """
        layout = self.layout
        seen = np.flatnonzero(layout.block[row, column])
        seen = seen[np.argsort(layout.positions[row][seen], kind="stable")]
        path = [*range(int(layout.cached[row])), *layout.cache_positions[row][seen].tolist()]
        return path[-window:] if window else path

    def alone(
        self, row: int, column: int, window: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, keys and values of a column as plain decoding lays them out.

        There is one query, and the keys of its text are contiguous.
        """
        path = self.path(row, column, window)
        return (
            self.query[row : row + 1, :, column : column + 1],
            self.key[row : row + 1, :, path],
            self.value[row : row + 1, :, path],
        )


def _heavy(chance: torch.Generator, *shape: int) -> Tensor:
    """Return numbers of very different magnitudes, so that sums reveal their order."""
    return torch.randn(*shape, generator=chance) * torch.randn(shape[-1], generator=chance).exp()


def random_parents(chance: np.random.Generator, nodes: int) -> list[int]:
    """Return the parents of a random tree, as in `DraftTree`."""
    return [int(chance.integers(-1, node)) for node in range(nodes)]


def path_of(parents: list[int], node: int) -> list[int]:
    """Return the nodes from the root to `node`."""
    return [int(i) for i in np.flatnonzero(tree_shape(tuple(parents))[1][node])]


class _RowLinear(nn.Module):
    """Linear layer that multiplies one row at a time, always with the same kernel."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1])
        rows = [self.linear(row[None]) for row in flat]
        return torch.cat(rows).reshape(*inputs.shape[:-1], -1)


def row_by_row(model: Any) -> Any:
    """Return a copy of a model whose linear layers take one row at a time."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(module, _RowLinear):
                setattr(module, name, _RowLinear(child))
    return model
