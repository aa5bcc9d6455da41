"""Test the choice of the number of helper threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from paceline.backend.products import Products
from paceline.cpu import helper_choice
from paceline.cpu.backend import CPU
from paceline.cpu.helper_choice import HelperTimes, with_fastest_team
from paceline.util.stopwatch import Conditions
from tests.support.tiny_configs import tiny_config

QUIET = Conditions(0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ((1.0, 0.6, 0.4), 3),
        ((1.0, 0.6, 0.55), 1),  # more helpers save too little
        ((1.0, 0.95, 0.9), 0),
        ((1.0, 1.5, 2.0), 0),
    ],
)
def test_fewest_helpers_among_the_fastest(seconds: tuple[float, ...], best: int) -> None:
    assert HelperTimes((0, 1, 3), seconds, QUIET).best == best


@pytest.mark.usefixtures("two_threads")
def test_products_get_the_measured_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    products = Products.of_backend(model, CPU)
    assert products.num_helpers(1) == 1
    for seconds, helpers in (((1.0, 0.5), 1), ((1.0, 0.99), 0)):
        times = HelperTimes((0, 1), seconds, QUIET)
        monkeypatch.setattr(
            "paceline.util.result_cache.load_or_compute", lambda *_, times=times: times
        )
        assert with_fastest_team(model, products).num_helpers(1) == helpers


@pytest.mark.usefixtures("two_threads")
def test_every_number_is_timed() -> None:
    layer = nn.Linear(32, 64, dtype=torch.bfloat16)
    times = helper_choice._time(Products((layer,), backend=CPU), 2)
    assert times.counts == (0, 1)
    assert min(times.seconds) > 0


def test_one_thread_needs_no_choice() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = AutoModelForCausalLM.from_config(tiny_config("llama"))
        products = Products.of_backend(model, CPU)
        assert with_fastest_team(model, products) is products
        assert products.num_helpers(1) is None
    finally:
        torch.set_num_threads(before)
