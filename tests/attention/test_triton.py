"""Compare batch-invariant attention in Triton's interpreter with the CPU kernel.

Needs triton, but no GPU. The interpreter takes a minute:

    TRITON_INTERPRET=1 .venv/bin/python -m pytest tests/attention/test_triton.py
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.attention import AttentionMetadata, registered
from paceline.attention.reach import Reach
from paceline.backend.attention_metadata import mask_address, stand_in_mask
from paceline.backend.interface import ScoreOptions
from paceline.cpu.attention.invariant import attention_by_position as on_cpu
from paceline.invariance.row_classes import bits
from paceline.model.cached_lm import CachedLM
from paceline.model.self_check import check_tree_forward
from tests.attention.test_by_position import lay
from tests.model.test_ragged_batch import both
from tests.support import models
from tests.support.attention import Columns
from tests.support.triton import infinite_elsewhere, patch_interpreter

pytest.importorskip("triton", reason="triton is not installed")
from paceline.attention import triton_kernel
from paceline.attention.triton_kernel import attention_by_position

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="set TRITON_INTERPRET=1")
RAGGED = [(70, 1, 9), (3, 2, 4)]


@pytest.fixture(autouse=True)
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        patch_interpreter(monkeypatch)


def unequal(
    columns: Columns,
    picked: list[tuple[int, int]],
    window: int | None = None,
    order: AttentionMetadata | None = None,
) -> int:
    """Return how many of the given columns (row, column) have other bits than plain
    decoding.
    """
    together = attention_by_position(
        columns.query, columns.key, columns.value, columns.mask(window), order or columns.order
    )
    count = 0
    for row, column in picked:
        assert not columns.layout.padding[row, column]
        query, key, value = columns.alone(row, column, window)
        alone = attention_by_position(
            query, key, value, None, AttentionMetadata.in_order(1, key.shape[2])
        )
        assert torch.isfinite(alone).all()
        count += not torch.equal(bits(alone[0, 0]), bits(together[row, column]))
    return count


@interpreted
@pytest.mark.parametrize(
    ("shape", "dtype", "window", "softcap", "with_sinks"),
    [
        ((3, 1, 64, 64), torch.bfloat16, None, None, False),
        ((2, 2, 16, 16), torch.float32, 6, None, True),
        ((5, 1, 20, 12), torch.float16, None, 5.0, True),
        (
            (18, 1, 80, 48),
            torch.float32,
            6,
            5.0,
            False,
        ),  # more heads in a group than queries in a program
    ],
)
def test_values_equal_those_of_the_cpu_kernel(
    shape: Any, dtype: torch.dtype, window: int | None, softcap: float | None, with_sinks: bool
) -> None:
    columns = Columns(lay(RAGGED), shape, dtype)
    states = columns.query, columns.key, columns.value, columns.mask(window), columns.order
    sinks = torch.linspace(-2, 2, shape[0]) if with_sinks else None
    options = ScoreOptions(0.3, softcap, sinks)
    ours, expected = attention_by_position(*states, options), on_cpu(*states, options)
    real = ~torch.from_numpy(columns.layout.padding)
    assert (ours.shape, ours.dtype) == (expected.shape, dtype)
    assert torch.allclose(
        ours[real].float(), expected[real].float(), rtol=2 * torch.finfo(dtype).eps, atol=1e-5
    )


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 20])
def test_trees_of_a_ragged_batch_have_the_bits_of_plain_decoding(
    dtype: torch.dtype, window: int | None
) -> None:
    columns = Columns(lay(RAGGED), (3, 1, 16, 16), dtype)
    last = columns.layout.token_ids.shape[1] - 1
    assert unequal(columns, [(0, 1), (0, 4), (0, last), (1, 0), (1, 5)], window) == 0


@interpreted
@pytest.mark.parametrize("window", [None, 20])
def test_packed_queries_have_the_bits_of_rows(window: int | None) -> None:
    layout, packing = both([*RAGGED, (0, 2, 0)])
    columns = Columns(layout, (3, 1, 16, 16), torch.float32)
    rows = attention_by_position(
        columns.query, columns.key, columns.value, columns.mask(window), columns.order
    )
    real = torch.from_numpy(~layout.padding)
    query = columns.query.transpose(1, 2)[real][None].transpose(1, 2)
    sign = stand_in_mask(query.shape[2], columns.visible, query.device)
    order = packing.attention_metadata({mask_address(sign): packing.visible(Reach(window))})
    packed = attention_by_position(query, columns.key, columns.value, sign, order)
    assert torch.equal(bits(packed[0]), bits(rows[real]))


@interpreted
def test_paths_that_cross_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The boundary between two splits (256 keys) lies among the tree's nodes."""
    columns = Columns(lay([(254, 1, 12), (40, 1, 2)]), (2, 1, 16, 16), torch.float32)
    picked = [(0, 6), (0, 12), (1, 2)]
    assert columns.layout.positions[0, [6, 12]].tolist() == [256, 256]
    assert unequal(columns, picked) == 0
    whole = attention_by_position(
        columns.query, columns.key, columns.value, columns.mask(), columns.order
    )
    monkeypatch.setattr(triton_kernel, "MAX_PARTIAL_SUMS", 1000)
    parts = attention_by_position(
        columns.query, columns.key, columns.value, columns.mask(), columns.order
    )
    assert torch.equal(bits(whole), bits(parts))


@interpreted
@pytest.mark.parametrize("window", [None, 30])
def test_chunks_of_a_prompt(window: int | None) -> None:
    noise = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 90, 16, generator=noise) for heads in (2, 1, 1))
    place = torch.arange(90)
    causal = ((place <= place[:, None]) & (place > place[:, None] - (window or 90)))[None, None]
    whole = attention_by_position(
        query,
        key,
        value,
        None if window is None else causal,
        AttentionMetadata.in_order(1, 90),
    )
    for begin, end in ((0, 33), (33, 34), (34, 90)):
        part = attention_by_position(
            query[:, :, begin:end],
            key[:, :, :end],
            value[:, :, :end],
            causal[:, :, begin:end, :end],
            AttentionMetadata.in_order(1, end),
        )
        assert torch.equal(bits(part), bits(whole[:, begin:end]))


@interpreted
def test_padding_on_the_left_and_holes() -> None:
    """Invisible keys before and between visible keys do not change the result."""
    noise = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, length, 16, generator=noise)
        for heads, length in ((2, 1), (1, 90), (1, 90))
    )
    mask = torch.zeros(1, 1, 1, 90, dtype=torch.bool)
    seen = [*range(5, 30), *range(41, 90)]
    mask[..., seen] = True
    padded = attention_by_position(query, key, value, mask, AttentionMetadata.in_order(1, 90))
    alone = attention_by_position(
        query,
        key[:, :, seen],
        value[:, :, seen],
        None,
        AttentionMetadata.in_order(1, len(seen)),
    )
    assert torch.equal(bits(padded), bits(alone))


@interpreted
def test_query_without_visible_keys_is_zero() -> None:
    query = torch.randn(1, 2, 3, 16)
    mask = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    mask[0, 0, 1, 2] = True
    for sinks in (None, torch.ones(2)):
        out = attention_by_position(
            query, query, query, mask, AttentionMetadata.in_order(1, 3), ScoreOptions(sinks=sinks)
        )
        assert not out[:, [0, 2]].any()
        assert out[:, 1].all()


@interpreted
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_infinite_keys_of_other_queries_have_no_effect() -> None:
    columns = Columns(lay(RAGGED[:1]), (2, 1, 16, 16), torch.float32)
    path = columns.path(0, 4)
    before = attention_by_position(
        columns.query, columns.key, columns.value, columns.mask(), columns.order
    )[0, 4]
    key, value = (infinite_elsewhere(one, 0, path) for one in (columns.key, columns.value))
    after = attention_by_position(columns.query, key, value, columns.mask(), columns.order)[0]
    assert torch.equal(bits(after[4]), bits(before))
    assert not torch.isfinite(after).all()


@interpreted
def test_order_of_slots_fails_the_same_test() -> None:
    columns = Columns(lay([(60, 1, 9)]), (3, 1, 16, 16), torch.float32)
    order = columns.order
    assert unequal(columns, [(0, 8), (0, 9)]) == 0
    assert (
        unequal(
            columns,
            [(0, 8), (0, 9)],
            order=AttentionMetadata(order.cached, order.tail[:, ::-1].copy(), order.keys),
        )
        > 0
    )


@interpreted
@pytest.mark.processor
def test_product_that_depends_on_row_index_fails_the_same_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter's own product uses BLAS."""
    patch_interpreter(monkeypatch, in_order=False)
    assert (
        unequal(
            Columns(lay(RAGGED), (3, 1, 16, 16), torch.float32),
            [(0, column) for column in range(1, 10)],
        )
        > 0
    )


@interpreted
def test_model_decodes_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt and a tree have the logits of eager attention."""
    calls: list[Tensor] = []

    def watch(query: Tensor, *others: Any) -> Tensor:
        calls.append(query)
        return attention_by_position(query, *others)

    monkeypatch.setattr(registered, "_attention_of", lambda device: watch)
    model = models.make("mistral")
    check_tree_forward(CachedLM(model, batch_invariant=True))
    assert len(calls) == 2 * model.config.num_hidden_layers


@interpreted
def test_the_script_times_the_kernel_and_other_launches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent.parent / "scripts")
    script = importlib.import_module("attention_on_cuda")
    monkeypatch.setattr(script, "HEADS", 2)
    monkeypatch.setattr(script, "KEY_HEADS", 1)
    monkeypatch.setattr(script, "REPEATS", 1)
    monkeypatch.setattr(script, "CANDIDATES", {2: [script.LAUNCHES[2, 64]]})
    device = torch.device("cpu")
    script.time_attention(torch.bfloat16, 64, [(2, 5, 3), (1, 0, 4)], device)
    script.time_launches(torch.bfloat16, 64, [(1, 5, 1)], device)
    lines = capsys.readouterr().out.splitlines()
    differences = [float(line.split("|")[-2]) for line in lines[2:4]]
    assert max(differences) < 0.03
    assert "chosen" in lines[-1]
