"""Test batch-invariant attention: correct values, and the same bits in every layout."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.attention import AttentionMetadata
from paceline.backend.interface import ScoreOptions
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.cpu.attention import invariant
from paceline.cpu.attention.invariant import attention_by_position
from paceline.model.padded_batch import lay_out
from tests.support.attention import Columns, random_parents, slow_attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [
    (3, 3, 64, 64),
    (9, 3, 64, 64),
    (4, 1, 16, 16),
    (8, 1, 128, 128),
    (6, 2, 80, 80),
    (2, 2, 24, 16),
    (2, 1, 20, 12),
]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, AttentionMetadata], Tensor]


def lay(rows: list[tuple[int, int, int]], seed: int = 0) -> Any:
    """Return the layout of rows given as (cached, pending, nodes), with random trees."""
    chance = np.random.default_rng(seed)
    requests, trees = [], []
    for cached, pending, nodes in rows:
        request = Request([1] * (cached + pending), SamplingParams())
        request.cached, request.slot = cached, 0
        requests.append(request)
        trees.append(DraftTree([1] * nodes, random_parents(chance, nodes)))
    return lay_out(requests, trees, prefill_chunk=1 << 20)


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, order: AttentionMetadata
) -> Tensor:
    causal = mask is None and query.shape[2] > 1
    return scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, enable_gqa=True
    ).transpose(1, 2)


def differing(
    columns: Columns, attend: Attend = attention_by_position, window: int | None = None
) -> int:
    """Return how many columns have other bits than plain decoding of their text."""
    layout = columns.layout
    together = attend(
        columns.query, columns.key, columns.value, columns.mask(window), columns.order
    )
    count = 0
    for row, column in itertools.product(*map(range, layout.token_ids.shape)):
        if not layout.padding[row, column]:
            query, key, value = columns.alone(row, column, window)
            alone = attend(query, key, value, None, AttentionMetadata.in_order(1, key.shape[2]))
            assert torch.isfinite(alone).all()
            count += not torch.equal(alone[0, 0], together[row, column])
    return count


RAGGED = [(70, 1, 9), (0, 5, 0), (3, 2, 30), (140, 1, 1), (65, 7, 12)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_trees_of_a_ragged_batch_have_the_bits_of_plain_decoding(
    shape: Any, dtype: torch.dtype
) -> None:
    columns = Columns(lay(RAGGED), shape, dtype)
    assert differing(columns) == 0
    assert differing(columns, window=20) == 0


@pytest.mark.processor
def test_sdpa_fails_the_same_test() -> None:
    columns = Columns(lay([(70, 1, 9)]), (9, 3, 64, 64), torch.float32)
    assert differing(columns) == 0
    assert differing(columns, sdpa) > 0


def test_order_of_slots_fails_the_same_test() -> None:
    """Keys of tree nodes are summed in the order of their slots instead of their positions."""
    columns = Columns(lay(RAGGED), (3, 3, 64, 64), torch.float32)

    def by_place(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, order: AttentionMetadata
    ) -> Tensor:
        if mask is not None:  # depth first: a node's ancestors in another order
            order = AttentionMetadata(order.cached, order.tail[:, ::-1].copy(), order.keys)
        return attention_by_position(query, key, value, mask, order)

    assert differing(columns, by_place) > 0


@pytest.mark.parametrize("seed", range(6))
def test_random_trees(seed: int) -> None:
    chance = np.random.default_rng(seed)
    rows = [
        (int(chance.integers(0, 300)), int(chance.integers(1, 9)), int(chance.integers(0, 64)))
        for _ in range(4)
    ]
    assert differing(Columns(lay(rows, seed), (4, 2, 64, 64), DTYPES[seed % 3], seed)) == 0


@pytest.mark.parametrize(
    "chunks", [[64] * 10, [512, 88], [3] * 200, [7, 1, 512, 80], [1] * 70 + [500, 30]]
)
@pytest.mark.parametrize("window", [None, 100])
def test_chunks_of_a_prompt(chunks: list[int], window: int | None) -> None:
    """Compute 600 tokens in chunks and in one pass."""
    query, key, value = (
        torch.randn(1, heads, 600, 64, generator=torch.Generator().manual_seed(heads))
        for heads in (6, 2, 3)
    )
    value = value[:, :2]
    place = torch.arange(600)
    causal = (place <= place[:, None]) & (place > place[:, None] - (window or 600))
    whole = attention_by_position(
        query, key, value, causal[None, None], AttentionMetadata.in_order(1, 600)
    )
    if window is None:
        assert torch.equal(
            whole,
            attention_by_position(query, key, value, None, AttentionMetadata.in_order(1, 600)),
        )
    ends = np.minimum(np.cumsum(chunks), 600).tolist()
    for begin, end in itertools.pairwise([0, *ends]):
        mask = causal[None, None, begin:end, :end]
        part = attention_by_position(
            query[:, :, begin:end],
            key[:, :, :end],
            value[:, :, :end],
            mask,
            AttentionMetadata.in_order(1, end),
        )
        assert torch.equal(part, whole[:, begin:end])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_the_reference(shape: Any, dtype: torch.dtype) -> None:
    heads, key_heads, dim, _ = shape
    columns = Columns(lay([(9, 2, 5), (0, 3, 0)]), shape, dtype)
    sinks = torch.linspace(-2, 2, heads)
    for window, softcap, sink in (
        (None, None, None),
        (4, None, sinks),
        (None, 5.0, None),
        (4, 5.0, sinks),
    ):
        ours = attention_by_position(
            columns.query,
            columns.key,
            columns.value,
            columns.mask(window),
            columns.order,
            ScoreOptions(0.3, softcap, sink),
        )
        assert ours.dtype == dtype
        for row, column, head in itertools.product(
            *map(range, columns.layout.token_ids.shape), range(heads)
        ):
            if columns.layout.padding[row, column]:
                continue
            key, value = (
                states[row, head * key_heads // heads] for states in (columns.key, columns.value)
            )
            slow = slow_attention(
                columns.query[row, head, column],
                key,
                value,
                columns.path(row, column, window),
                0.3,
                softcap,
                None if sink is None else float(sink[head]),
            )
            assert torch.allclose(
                ours[row, column, head].float(), slow, rtol=2 * torch.finfo(dtype).eps, atol=2e-6
            ), (
                dim,
                window,
            )


def test_query_without_visible_keys_is_zero() -> None:
    query = torch.randn(1, 2, 3, 16)
    mask = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    mask[0, 0, 1, 2] = True
    for sinks in (None, torch.ones(2)):
        out = attention_by_position(
            query,
            query,
            query,
            mask,
            AttentionMetadata.in_order(1, 3),
            ScoreOptions(sinks=sinks),
        )
        assert not out[:, [0, 2]].any()
        assert out[:, 1].all()


def test_large_scores_do_not_overflow() -> None:
    query = torch.full((1, 1, 1, 64), 1e3)
    key = torch.stack([torch.full((64,), sign * 1e3) for sign in (1, -1, 1)])[None, None]
    out = attention_by_position(query, key, key, None, AttentionMetadata.in_order(1, 3))
    assert torch.equal(out, torch.full((1, 1, 1, 64), 1e3))


def test_half_precision_values_are_exact() -> None:
    """Every finite float16 and bfloat16 number is the value of the only visible key."""
    for dtype in (torch.float16, torch.bfloat16):
        value = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
        value = value[value.isfinite()]
        value = value[: len(value) // 8 * 8][None, None, None]
        zeros = torch.zeros(1, 1, 1, 8, dtype=dtype)
        assert torch.equal(
            attention_by_position(zeros, zeros, value, None, AttentionMetadata.in_order(1, 1))[0],
            value[0],
        )


@pytest.mark.parametrize(
    ("tile", "threads"), [((1, 1), 1), ((5, 5), 1), ((64, 512), 3), ((2, 2), 3)]
)
def test_tiles_and_threads_keep_the_bits(
    tile: tuple[int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = Columns(lay(RAGGED), (9, 3, 64, 64), torch.bfloat16)
    expected = attention_by_position(
        columns.query, columns.key, columns.value, columns.mask(), columns.order
    )
    monkeypatch.setattr(invariant, "MIN_QUERIES_PER_TILE", tile[0])
    monkeypatch.setattr(invariant, "MAX_QUERIES_PER_TILE", tile[1])
    monkeypatch.setattr(invariant, "MULTIPLY_ADDS_PER_ATTENTION_HELPER", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for _ in range(3):
            again = attention_by_position(
                columns.query, columns.key, columns.value, columns.mask(), columns.order
            )
            assert torch.equal(again.view(torch.int16), expected.view(torch.int16))
    finally:
        torch.set_num_threads(before)


def test_masks_are_read_once_per_forward_pass() -> None:
    columns = Columns(lay(RAGGED), (3, 3, 16, 16), torch.float32)
    order, mask, other, width = (
        columns.order,
        columns.mask(),
        columns.mask(20),
        columns.query.shape[2],
    )
    assert order.visible(mask, width) is order.visible(mask, width)
    assert order.visible(other, width) is not order.visible(mask, width)
