"""Check top-k tokens, probabilities and entropies against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.core.not_numbers import NO_TOKEN
from paceline.cpu.topk import argmax, entropies, topk

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def logits(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return logits of which many are equal in half precision."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 4, 72), (3, 1000), (2, 1001), (5, 4096)])
def test_results_agree_with_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = logits(*shape, dtype=dtype)
    assert torch.equal(argmax(rows), rows.argmax(-1))
    for count in (1, 5, 8, 2000):
        token_ids, probs = topk(rows, count)
        wanted = rows.float().softmax(-1)
        best = wanted.topk(min(count, shape[-1])).values.numpy()
        assert token_ids.shape == probs.shape == best.shape
        assert np.allclose(probs, best, rtol=1e-5, atol=1e-7)
        assert np.allclose(wanted.gather(-1, token_ids), best, rtol=1e-5, atol=1e-7)
        assert all(
            len({*row}) == len(row) for row in token_ids.reshape(-1, token_ids.shape[-1]).tolist()
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_lowest_of_equal_tokens_comes_first(dtype: torch.dtype) -> None:
    rows = torch.zeros(2, 128, dtype=dtype)
    rows[1, [100, 70, 3]] = 1
    assert argmax(rows).tolist() == rows.argmax(-1).tolist() == [0, 3]
    assert topk(rows, 4)[0].tolist() == [[0, 1, 2, 3], [3, 70, 100, 0]]
    by_torch = rows[:, :127]  # not a multiple of eight
    for count in (1, 2, 5):
        result = topk(by_torch, count)[0]
        assert result[:, 0].tolist() == [0, 3]
        assert all(len({*row}) == count for row in result.tolist())
        assert by_torch.gather(-1, result)[1].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0][:count]


def test_rows_that_are_not_adjacent() -> None:
    wide = logits(3, 4, 128)
    assert torch.equal(argmax(wide[:, ::2, :64]), wide[:, ::2, :64].argmax(-1))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("index", [0, 5, 71])
def test_rows_of_nan_do_not_change_other_rows(odd: float, index: int) -> None:
    rows = logits(3, 72)
    rows[1, index] = odd
    fine = [0, 1, 2] if odd == -torch.inf else [0, 2]
    assert torch.equal(argmax(rows)[fine], rows[fine].argmax(-1))
    token_ids, probs = topk(rows, 3)
    best = rows[fine].topk(3)
    assert token_ids[fine].tolist() == best.indices.tolist()
    assert np.allclose(probs[fine], (best.values - rows[fine].logsumexp(-1, True)).exp().numpy())
    if 1 not in fine:
        assert argmax(rows)[1] == NO_TOKEN
        assert probs[1].tolist() == [0.0] * 3


def test_rows_of_minus_infinity() -> None:
    rows = torch.full((2, 16), -torch.inf)
    assert argmax(rows).tolist() == [NO_TOKEN] * 2
    assert not topk(rows, 2)[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 4, 72), (3, 1001), (5, 4096)])
def test_entropies(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = logits(*shape, dtype=dtype)
    rows[..., 3] = -torch.inf
    rows[-1] = -torch.inf
    rows[-1, ..., 5] = 2.0  # all is sure
    exact = torch.special.entr(rows.double().softmax(-1)).sum(-1)
    assert entropies(rows).dtype == torch.float32
    assert torch.allclose(entropies(rows).double(), exact, rtol=1e-5, atol=1e-6)
