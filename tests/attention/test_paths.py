"""Test the table of cache positions that the Triton kernel reads; triton is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.attention.paths import paths_of
from tests.attention.test_by_position import lay
from tests.support.attention import Columns
from tests.support.simulated_cuda import CUDA, CudaTensor, simulated_cuda


def test_paths_list_the_keys_of_every_query() -> None:
    for window in (None, 5):
        columns = Columns(lay([(7, 2, 9), (0, 5, 0), (3, 1, 30)]), (1, 1, 16, 16), torch.float32)
        layout, order, mask = columns.layout, columns.order, columns.mask(window)
        width = layout.token_ids.shape[1]
        paths = paths_of(order, mask, width, 4, torch.device("cpu"))
        assert paths_of(order, mask, width, 4, torch.device("cpu")) is paths
        head, start, leading, count, listed = np.split(
            paths.table.numpy(), np.cumsum([paths.tiles.size] + [paths.queries] * 3)
        )
        assert np.array_equal(head.reshape(-1, 4), paths.tiles)
        for row, column in np.argwhere(~layout.padding).tolist():
            which = row * width + column
            behind = listed.reshape(-1, paths.width)[which, : count[which] - leading[which]]
            places = [*range(start[which], start[which] + leading[which]), *behind.tolist()]
            assert places == columns.path(row, column, window)
        rows, first, queries, column = paths.tiles.T
        assert np.array_equal(first, rows * width + column)
        assert np.array_equal(np.repeat(first, queries) + _counted(queries), np.arange(len(start)))


def _counted(counts: Any) -> Any:
    """Return 0, ..., count - 1 for every count."""
    return np.concatenate([np.arange(count) for count in counts])


def test_forward_pass_uploads_one_table_without_waiting() -> None:
    columns = Columns(lay([(7, 2, 9), (3, 1, 30)]), (1, 1, 16, 16), torch.float32)
    order, mask = columns.order, columns.mask()
    expected = paths_of(columns.order, mask, mask.shape[2], 4, torch.device("cpu")).table
    with simulated_cuda() as traffic:
        tables = [paths_of(order, mask, mask.shape[2], 4, CUDA).table for _ in range(3)]
        assert isinstance(tables[0], CudaTensor)
        assert torch.equal(tables[0].beneath, expected)
    assert [(event.waits, event.up) for event in traffic.events] == [(False, expected.nbytes)]
