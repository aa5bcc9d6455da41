"""Test biases that are added to the scores of visible keys."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from paceline.attention import AttentionMetadata
from paceline.backend.interface import ScoreOptions
from paceline.backend.torch_backend import TORCH
from paceline.cpu.attention.invariant import attention_by_position
from tests.attention.test_by_position import DTYPES, RAGGED, lay
from tests.support.attention import Columns

SHAPES = [(3, 3, 64, 64), (8, 1, 128, 128), (6, 2, 80, 80), (2, 1, 20, 12)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_biased_trees_have_the_bits_of_plain_decoding(shape: Any, dtype: torch.dtype) -> None:
    columns = Columns(lay(RAGGED), shape, dtype)
    layout, noise = columns.layout, torch.Generator().manual_seed(5)
    rows, width = layout.token_ids.shape
    biases = torch.randn(rows, shape[0], width, columns.visible, generator=noise).to(dtype)
    for window in (None, 20):
        mask, options = columns.mask(window), ScoreOptions(0.3, bias=biases)
        states = columns.query, columns.key, columns.value
        together = attention_by_position(*states, mask, columns.order, options)
        plain = attention_by_position(*states, mask, columns.order, ScoreOptions(0.3))
        assert not torch.equal(together, plain)
        for row, column in itertools.product(range(rows), range(width)):
            if layout.padding[row, column]:
                continue
            path = columns.path(row, column, window)
            options = ScoreOptions(0.3, bias=biases[row : row + 1, :, column : column + 1, path])
            alone = attention_by_position(
                *columns.alone(row, column, window),
                None,
                AttentionMetadata.in_order(1, len(path)),
                options,
            )
            assert torch.equal(alone[0, 0], together[row, column])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_values_are_those_of_torch(dtype: torch.dtype, softcap: float | None) -> None:
    noise = torch.Generator().manual_seed(3)
    query = torch.randn(2, 6, 5, 64, generator=noise).to(dtype)
    key, value = (torch.randn(2, 2, 40, 64, generator=noise).to(dtype) for _ in range(2))
    bias = torch.randn(1, 6, 5, 40, generator=noise).to(dtype)
    mask = torch.ones(5, 40, dtype=torch.bool).tril(35)[None, None]
    arguments = query, key, value, mask, AttentionMetadata.in_order(2, 40)
    options = ScoreOptions(0.2, softcap, torch.randn(6, generator=noise), bias)
    ours = attention_by_position(*arguments, options)
    torch.testing.assert_close(ours, TORCH.attention(*arguments, options), rtol=2e-2, atol=2e-2)
    if softcap is None and dtype == torch.float32:
        options = ScoreOptions(0.2, bias=bias)
        hidden = bias.masked_fill(~mask, -torch.inf).expand(2, -1, -1, -1)
        wanted = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, hidden, scale=0.2, enable_gqa=True
        ).transpose(1, 2)
        torch.testing.assert_close(attention_by_position(*arguments, options), wanted)
