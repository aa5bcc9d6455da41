"""Test that ids of a Strategy equal those of `generate`, greedy and sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from paceline.errors import UnsupportedModelError
from paceline.integrations.transformers import Strategy, decoding
from paceline.integrations.transformers.rows import SharedNoise
from paceline.model.forward_arguments import cache_argument
from tests.integrations.common import (
    DRAFTERS,
    ENDS,
    EVERY_DRAFTER,
    GREEDY,
    PENALISED,
    SAMPLED,
    VOCAB,
    accepted,
    cached_model,
    padded,
    with_and_without,
)
from tests.support.drafters import ScriptedTree
from tests.support.models import make


@pytest.mark.parametrize("options", [GREEDY, PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize("spec", EVERY_DRAFTER)
def test_greedy_ids_equal_generate(
    target: Any,
    every_strategy: dict[str, Strategy],
    one: Any,
    three: Any,
    spec: str,
    options: dict[str, Any],
) -> None:
    strategy = every_strategy[spec]
    drafts_accepted = 0
    for inputs in (one, three):
        expected, found = with_and_without(target, strategy, inputs, **options)
        assert torch.equal(found, expected)
        assert found.dtype == torch.long
        drafts_accepted += accepted(strategy)
    if spec not in ("none", "jacobi") and options is GREEDY:
        assert drafts_accepted > 0


@pytest.mark.parametrize("spec", EVERY_DRAFTER)
def test_sampled_ids_and_random_state_equal_generate(
    target: Any, every_strategy: dict[str, Strategy], one: Any, three: Any, spec: str
) -> None:
    strategy = every_strategy[spec]
    drafts_accepted = 0
    lengths: set[int] = set()
    for inputs, seeds in ((one, 2), (three, 4)):
        for seed in range(seeds):
            expected, found = with_and_without(
                target, strategy, inputs, seed, eos_token_id=ENDS if seed % 2 else None, **SAMPLED
            )
            assert torch.equal(found, expected)
            drafts_accepted += accepted(strategy)
            lengths.update(row.new_tokens for row in strategy.stats)
    assert (drafts_accepted > 0) == (spec != "none")
    assert len(lengths) > 4  # rows ended at different steps


@pytest.mark.parametrize(
    "options", [GREEDY, PENALISED, SAMPLED], ids=["plain", "penalised", "sampled"]
)
def test_trees_with_side_branches_equal_generate(
    target: Any, three: Any, options: dict[str, Any]
) -> None:
    side_branches = 0
    for seed in range(3):
        torch.manual_seed(seed)
        ids = target.generate(
            **three, pad_token_id=0, eos_token_id=None, max_new_tokens=24, **options
        )
        width = three["input_ids"].shape[1]
        rows = zip(three["input_ids"], three["attention_mask"], ids, strict=True)
        answers = {
            tuple(row[mask.bool()].tolist()): full[width:].tolist() for row, mask, full in rows
        }
        drafter = ScriptedTree(answers, VOCAB, seed)
        strategy = Strategy(drafter)
        expected, found = with_and_without(target, strategy, three, seed, **options)
        assert torch.equal(found, expected)
        assert all(row.tokens_per_forward > 1 for row in strategy.stats)
        side_branches += drafter.side_branches
    assert side_branches > 5


@pytest.mark.parametrize(
    ("name", "implementation"),
    [("mistral", "sdpa"), ("gemma2", "eager"), ("gpt_oss", "eager"), ("falcon", "eager")],
)
def test_other_kinds_of_attention_equal_generate(name: str, implementation: str) -> None:
    model = cached_model(name, implementation)
    inputs = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4, [8, 21, 7, 30, 12] * 3])
    strategy = Strategy("prompt_lookup:max_draft_tokens=5,budget=false")
    for options in (GREEDY, SAMPLED):
        expected, found = with_and_without(model, strategy, inputs, **options)
        assert torch.equal(found, expected)
        expected, found = with_and_without(
            model, strategy, {"input_ids": inputs["input_ids"][:1]}, **options
        )
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon_mamba", "qwen3_5"])
def test_recurrent_models_equal_generate(name: str) -> None:
    """Include models without any attention layer, whose caches have no length."""
    model = make(name)
    inputs = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4, [8, 21, 7, 30, 12] * 3])
    strategy = Strategy("prompt_lookup:max_draft_tokens=5,budget=false")
    for options in (GREEDY, SAMPLED):
        for given in (inputs, {"input_ids": inputs["input_ids"][:1]}):
            expected, found = with_and_without(model, strategy, given, **options)
            assert torch.equal(found, expected)
            assert sum(row.drafted_tokens for row in strategy.stats) > 0
    with pytest.raises(UnsupportedModelError, match="recurrent states cannot be copied"):
        model.generate(
            inputs["input_ids"][:1],
            max_new_tokens=4,
            **{cache_argument(model): DynamicCache(config=model.config)},
            custom_generate=strategy,
        )


def test_prompts_may_exceed_a_prefill_chunk(target: Any, three: Any) -> None:
    strategy = Strategy("prompt_lookup:budget=false")
    with_and_without(target, strategy, three)
    (_, _, engine) = strategy._engines[target]
    engine.model.prefill_chunk = 32  # the prompts have 39, 36 and 30 tokens
    expected, found = with_and_without(target, strategy, three, **SAMPLED)
    assert torch.equal(found, expected)
    assert [row.prefill_forwards for row in strategy.stats] == [1, 2, 2]


def test_several_sequences_per_prompt_equal_generate(
    target: Any, strategies: dict[str, Strategy], three: Any
) -> None:
    options = {**SAMPLED, "encoder_repetition_penalty": 1.2, "num_return_sequences": 2}
    single = {name: value[:1] for name, value in three.items()}
    expected, found = with_and_without(target, strategies[DRAFTERS[2]], single, **options)
    assert found.shape[0] == 2
    assert torch.equal(found, expected)


def test_shared_noise_equals_multinomial() -> None:
    # The shape is steps, rows, vocabulary.
    probs = torch.rand(8, 3, 97, generator=torch.Generator().manual_seed(1)).softmax(-1)
    torch.manual_seed(3)
    expected = [torch.multinomial(step, 1)[:, 0].tolist() for step in probs]
    after = torch.rand(2)
    torch.manual_seed(3)
    noise = SharedNoise(3, torch.device("cpu"))
    order = (
        [(2, step) for step in range(8)]
        + [(0, step) for step in range(4)]
        + [(1, step) for step in range(8)]
    )
    for row, step in order:
        assert int((probs[step, row] / noise.take(row, step, 97)).argmax()) == expected[step][row]
    assert torch.equal(torch.rand(2), after)
    assert noise.num_shares == 4  # row 0 has not yet taken the noise of steps 4 to 7
    noise.leave(0)
    assert noise.num_shares == 0


def test_noise_in_another_order_changes_the_ids(
    target: Any, draft: Any, three: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class UnorderedNoise(SharedNoise):
        def take(self, row: int, step: int, vocab: int) -> Tensor:
            return torch.empty(vocab).exponential_(1)

    monkeypatch.setattr(decoding, "SharedNoise", UnorderedNoise)
    torch.manual_seed(0)
    expected = target.generate(**three, **SAMPLED, pad_token_id=0, max_new_tokens=24)
    torch.manual_seed(0)
    strategy = Strategy("draft_model:max_draft_tokens=4", draft)
    found = target.generate(
        **three, **SAMPLED, pad_token_id=0, max_new_tokens=24, custom_generate=strategy
    )
    assert accepted(strategy) > 0
    assert not torch.equal(found, expected)
