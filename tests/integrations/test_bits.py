"""Test batch-invariant strategies in bfloat16.

Drafted tokens in any batch equal plain decoding of each prompt alone.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from paceline.integrations.transformers import Strategy
from tests.support.shared import Pair, without_budget

pytestmark = pytest.mark.processor
SPECS = ("prompt_lookup", "lookahead", "draft_model")
OPTIONS: dict[str, Any] = {"max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
SAMPLED = {"do_sample": True, "temperature": 0.8}


@pytest.fixture(scope="module")
def half(pair: Pair) -> Any:
    return copy.deepcopy(pair.target).to(torch.bfloat16)


def answers(
    model: Any, strategy: Strategy, prompts: list[list[int]], batch: int, **options: Any
) -> list[list[int]]:
    """Return the new tokens of each prompt in batches of `batch`, padded on the left."""
    new = []
    for at in range(0, len(prompts), batch):
        some = prompts[at : at + batch]
        width = max(map(len, some))
        ids = torch.tensor([[0] * (width - len(one)) + one for one in some])
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in some])
        torch.manual_seed(at)
        out = model.generate(
            ids, attention_mask=mask, **OPTIONS, **options, custom_generate=strategy
        )
        new += out[:, width:].tolist()
    return new


def drafted(pair: Pair, spec: str, batch_invariant: bool) -> Strategy:
    draft = copy.deepcopy(pair.draft) if spec == "draft_model" else None
    return Strategy(without_budget(spec), draft_model=draft, batch_invariant=batch_invariant)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_drafted_tokens_equal_plain_decoding(pair: Pair, half: Any, spec: str, batch: int) -> None:
    plain = answers(half, Strategy("none", batch_invariant=True), pair.prompts, 1)
    strategy = drafted(pair, spec, batch_invariant=True)
    assert answers(half, strategy, pair.prompts, batch) == plain
    assert all(row.batch_invariant for row in strategy.stats)
    assert sum(row.accepted_tokens for row in strategy.stats) > 0


@pytest.mark.parametrize("spec", SPECS[:2])
def test_sampled_tokens_equal_plain_decoding(pair: Pair, half: Any, spec: str) -> None:
    plain, found = (
        answers(half, one, pair.prompts, 1, **SAMPLED)
        for one in (
            Strategy("none", batch_invariant=True),
            drafted(pair, spec, batch_invariant=True),
        )
    )
    assert found == plain


def test_tokens_differ_without_batch_invariance(pair: Pair, half: Any) -> None:
    """Tokens differ without batch invariance, so the equalities above mean something."""
    plain = answers(half, Strategy("none", batch_invariant=False), pair.prompts, 1)
    found = [
        answers(half, drafted(pair, spec, batch_invariant=False), pair.prompts, batch)
        for spec in SPECS
        for batch in (1, 3)
    ]
    assert sum(one != other for some in found for one, other in zip(some, plain, strict=True)) > 0
