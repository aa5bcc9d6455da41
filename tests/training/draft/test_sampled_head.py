"""Test the sampled softmax over the rows of an LM head."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.training.draft.sampled_head import SampledHead

VOCAB, KEPT = 300, np.arange(0, 300, 3)
COUNTS = np.where(np.arange(VOCAB) < 60, 1000, 1)  # 20 tokens of the head are frequent


@pytest.fixture(params=[False, True], ids=["plain", "with a bias"])
def head(request: pytest.FixtureRequest) -> SimpleNamespace:
    torch.manual_seed(0)
    return SimpleNamespace(
        token_ids=torch.from_numpy(KEPT),
        kept=torch.randn(len(KEPT), 8),
        added=torch.randn(len(KEPT)) if request.param else None,
    )


def rows_of(weight: torch.Tensor, head: SimpleNamespace) -> list[int]:
    return [int((head.kept == row).all(1).nonzero()) for row in weight]


def test_frequent_and_text_tokens_are_always_included(head: SimpleNamespace) -> None:
    sampled = SampledHead(head.kept, head.added, head.token_ids, COUNTS, torch.float32)
    text_ids = torch.tensor([[297, 150, 1, 2]])  # the last two are not in the head
    for seed in range(5):
        weight, bias = sampled.sample(text_ids, np.random.default_rng(seed))
        rows = rows_of(weight, head)
        offset = bias if head.added is None else bias - head.added[rows]
        certain = [*range(18), 50, 99]
        assert set(certain) <= set(rows)
        assert len(rows) < 60
        assert all(float(offset[rows.index(row)]) == 0 for row in certain)
        rare = [index for index, row in enumerate(rows) if row >= 20 and row not in certain]
        torch.testing.assert_close(offset[rare], torch.full((len(rare),), float(np.log(8))))


def test_sum_over_samples_is_unbiased(head: SimpleNamespace) -> None:
    sampled, random = (
        SampledHead(head.kept, head.added, head.token_ids, COUNTS, torch.float32),
        np.random.default_rng(0),
    )
    state = torch.randn(8, generator=torch.Generator().manual_seed(1)) / 4
    parts = [
        weight @ state + bias
        for weight, bias in (sampled.sample(torch.tensor([[1]]), random) for _ in range(2000))
    ]
    bias = 0 if head.added is None else head.added
    total = (head.kept @ state + bias).exp().sum()
    mean = torch.stack([part.exp().sum() for part in parts]).mean()
    assert float(mean / total) == pytest.approx(1, abs=0.02)
    assert (
        float(torch.stack([part.exp().sum() for part in parts]).std() / total) > 0.02
    )  # only some of the rows are drawn


def test_missing_offset_is_noticed(head: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "paceline.training.draft.sampled_head.math", SimpleNamespace(log=lambda _: 0.0)
    )
    with pytest.raises(AssertionError):
        test_sum_over_samples_is_unbiased(head)
