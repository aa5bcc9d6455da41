"""Test that the cost of batch invariance is measured on whole forward passes."""

import pytest

from paceline.backend.products import Products
from paceline.invariance.forward_cost import forward_cost
from paceline.invariance.settings import CONTEXT_TOKENS
from paceline.model.cached_lm import CachedLM
from tests.support.models import make


def test_cost_of_padded_rows_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that rows padded to many cost more than one row."""
    model, seen = make("llama", "sdpa"), []
    honest = CachedLM.forward

    def record_forward(self: CachedLM, requests: object, trees: object) -> object:
        seen.append((self.architecture.by_position, requests[0].cached))  # type: ignore[index]
        return honest(self, requests, trees)  # type: ignore[arg-type]

    monkeypatch.setattr(CachedLM, "forward", record_forward)
    assert forward_cost(model, 512, Products(), 1.05).ratio > 1.05
    assert {by_position for by_position, _ in seen} == {True, False}
    assert {cached for _, cached in seen} == {
        min(CONTEXT_TOKENS, model.config.max_position_embeddings - 2)
    }


def test_number_of_rounds_depends_on_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[object] = []
    honest = CachedLM.forward
    monkeypatch.setattr(
        CachedLM,
        "forward",
        lambda self, *arguments: rounds.append(1) or honest(self, *arguments),  # type: ignore[func-returns-value]
    )
    forward_cost(make("llama", "sdpa"), 1, Products(), 1e9)
    few = len(rounds)
    forward_cost(make("llama", "sdpa"), 1, Products(), 0.0)
    assert few < len(rounds) - few
