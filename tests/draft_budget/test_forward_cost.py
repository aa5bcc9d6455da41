"""What batch invariance costs a step is measured on whole forwards, and nothing of it stays
behind.
"""

import pytest

from paceline.backend.products import Products
from paceline.invariance.forward_cost import forward_cost
from paceline.invariance.settings import CONTEXT_TOKENS
from paceline.model.cached_lm import CachedLM
from tests.support.models import make


def test_a_cost_that_is_paid_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are padded to many cost more than one row does."""
    model, seen = make("llama", "sdpa"), []
    honest = CachedLM.forward

    def watched(self: CachedLM, requests: object, trees: object) -> object:
        seen.append((self.architecture.by_position, requests[0].cached))  # type: ignore[index]
        return honest(self, requests, trees)  # type: ignore[arg-type]

    monkeypatch.setattr(CachedLM, "forward", watched)
    assert forward_cost(model, 512, Products(), 1.05).ratio > 1.05
    assert {by_position for by_position, _ in seen} == {True, False}
    assert {cached for _, cached in seen} == {
        min(CONTEXT_TOKENS, model.config.max_position_embeddings - 2)
    }


def test_enough_rounds_are_made_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[object] = []
    honest = CachedLM.forward
    monkeypatch.setattr(
        CachedLM,
        "forward",
        lambda self, *asked: rounds.append(1) or honest(self, *asked),  # type: ignore[func-returns-value]
    )
    forward_cost(make("llama", "sdpa"), 1, Products(), 1e9)
    few = len(rounds)
    forward_cost(make("llama", "sdpa"), 1, Products(), 0.0)
    assert few < len(rounds) - few
