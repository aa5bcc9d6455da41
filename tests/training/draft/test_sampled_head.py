"""Part of the kept tokens stands for all of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.training.draft.sampled_head import SampledHead

VOCAB, KEPT = 300, np.arange(0, 300, 3)
COUNTS = np.where(np.arange(VOCAB) < 60, 1000, 1)  # 20 of the kept ones are often said


@pytest.fixture(params=[False, True], ids=["plain", "with a bias"])
def head(request: pytest.FixtureRequest) -> SimpleNamespace:
    torch.manual_seed(0)
    return SimpleNamespace(
        token_ids=torch.from_numpy(KEPT),
        kept=torch.randn(len(KEPT), 8),
        added=torch.randn(len(KEPT)) if request.param else None,
    )


def places_of(weight: torch.Tensor, head: SimpleNamespace) -> list[int]:
    return [int((head.kept == row).all(1).nonzero()) for row in weight]


def test_what_is_often_said_or_in_the_texts_is_always_taken_as_it_is(head: SimpleNamespace) -> None:
    sampled = SampledHead(head, COUNTS, torch.float32)
    said = torch.tensor([[297, 150, 1, 2]])  # the last two are not kept
    for seed in range(5):
        weight, bias = sampled.sample(said, np.random.default_rng(seed))
        places = places_of(weight, head)
        offset = bias if head.added is None else bias - head.added[places]
        surely = [*range(18), 50, 99]
        assert set(surely) <= set(places)
        assert len(places) < 60
        assert all(float(offset[places.index(place)]) == 0 for place in surely)
        rare = [at for at, place in enumerate(places) if place >= 20 and place not in surely]
        torch.testing.assert_close(offset[rare], torch.full((len(rare),), float(np.log(8))))


def test_the_sum_over_a_part_is_that_over_all_in_the_mean(head: SimpleNamespace) -> None:
    sampled, random = SampledHead(head, COUNTS, torch.float32), np.random.default_rng(0)
    state = torch.randn(8, generator=torch.Generator().manual_seed(1)) / 4
    parts = [
        weight @ state + bias
        for weight, bias in (sampled.sample(torch.tensor([[1]]), random) for _ in range(2000))
    ]
    bias = 0 if head.added is None else head.added
    whole = (head.kept @ state + bias).exp().sum()
    mean = torch.stack([part.exp().sum() for part in parts]).mean()
    assert float(mean / whole) == pytest.approx(1, abs=0.02)
    assert (
        float(torch.stack([part.exp().sum() for part in parts]).std() / whole) > 0.02
    )  # it is a part that is drawn


def test_a_bias_that_stands_for_nothing_is_noticed(
    head: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "paceline.training.draft.sampled_head.math", SimpleNamespace(log=lambda _: 0.0)
    )
    with pytest.raises(AssertionError):
        test_the_sum_over_a_part_is_that_over_all_in_the_mean(head)
