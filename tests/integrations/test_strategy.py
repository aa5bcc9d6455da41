"""Test what a Strategy keeps between calls, and what it releases."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation import (
    LogitsProcessor,
)

from paceline.errors import ConfigError
from paceline.integrations.transformers import Strategy, generate
from tests.integrations.common import (
    SAMPLED,
    VOCAB,
    Recorder,
    make_model,
    padded,
    random_ids,
    with_and_without,
)
from tests.support.drafters import ScriptedTree
from tests.support.state_heads import random_eagle3


def test_an_interruption_leaves_no_state(target: Any, draft: Any, three: Any) -> None:
    scripted = ScriptedTree({}, VOCAB)
    for drafter in ("prompt_lookup", "draft_model", scripted):
        strategy = Strategy(drafter, draft_model=draft if drafter == "draft_model" else None)
        streamer = Recorder(fail_at=0 if drafter is scripted else 4)
        # The script has no answers, so `propose` raises.
        error = KeyError if drafter is scripted else KeyboardInterrupt
        with pytest.raises((error, KeyboardInterrupt)):
            generate(
                target,
                **three,
                drafter=strategy,
                streamer=streamer,
                max_new_tokens=20,
                pad_token_id=0,
            )
        assert streamer.ended == 1
        for engine in [entry[2] for entry in strategy._engines.values()]:
            assert engine.model.open_sequences == 0
        state = [value for value in vars(strategy.drafter).values() if isinstance(value, dict)]
        assert not any(state)
        assert (
            getattr(strategy.drafter, "_draft", None) is None
            or strategy.drafter._draft.open_sequences == 0  # type: ignore[attr-defined]
        )
        expected, found = with_and_without(
            target, Strategy() if drafter is scripted else strategy, three
        )
        assert torch.equal(found, expected)


def test_a_failing_drafter_frees_all_slots(target: Any, three: Any) -> None:
    drafter = ScriptedTree({}, VOCAB)
    strategy = Strategy(drafter)
    with pytest.raises(KeyError):
        with_and_without(target, strategy, three)
    assert drafter.open == set()
    assert strategy._engines[target][2].model.open_sequences == 0


def test_the_engine_is_kept_until_the_model_changes() -> None:
    fresh = make_model("llama", "sdpa")
    strategy = Strategy("prompt_lookup")
    inputs = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4])
    with_and_without(fresh, strategy, inputs)
    engine = strategy._engines[fresh][2]
    expected, found = with_and_without(fresh, strategy, inputs)
    assert strategy._engines[fresh][2] is engine
    fresh.set_attn_implementation("eager")  # the masks of the old engine would be wrong
    expected, found = with_and_without(fresh, strategy, inputs)
    assert torch.equal(found, expected)
    assert strategy._engines[fresh][2] is not engine
    fresh.double()
    expected, found = with_and_without(fresh, strategy, padded([[5, 9, 33, 7] * 4]))
    assert torch.equal(found, expected)


def test_a_model_can_be_released(one: Any) -> None:
    strategy = Strategy()
    model = copy.deepcopy(make_model("llama"))  # a copy, so that nothing else refers to it
    model.generate(one["input_ids"], max_new_tokens=2, custom_generate=strategy)
    assert len(strategy._engines) == 1
    del model
    gc.collect()
    assert len(strategy._engines) == 0


def test_configurations_are_not_changed(
    target: Any, strategies: dict[str, Strategy], three: Any
) -> None:
    before = (
        copy.deepcopy(target.generation_config.to_dict()),
        copy.deepcopy(target.config.to_dict()),
    )
    for strategy in strategies.values():
        with_and_without(target, strategy, three, **SAMPLED)
    assert (target.generation_config.to_dict(), target.config.to_dict()) == before


def test_a_call_inside_a_call_is_refused(target: Any, one: Any) -> None:
    strategy = Strategy()

    class Nested(LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            target.generate(input_ids, max_new_tokens=1, custom_generate=strategy)
            return scores

    with pytest.raises(ConfigError, match="inside its own generate"):
        target.generate(
            **one, max_new_tokens=4, logits_processor=[Nested()], custom_generate=strategy
        )
    assert torch.equal(*with_and_without(target, strategy, one))


def test_the_cache_grows_with_the_output(target: Any) -> None:
    strategy = Strategy("prompt_lookup")
    options = {
        "do_sample": False,
        "max_new_tokens": 700,
        "eos_token_id": None,
        "custom_generate": strategy,
    }
    ids = target.generate(**padded([random_ids(4, 10)]), **options)
    assert strategy.stats[0].new_tokens == 700
    logits = target(ids[:, :-1]).logits  # rounding decides between nearly equal tokens
    margin = logits[0, 9:].topk(2).values.diff().abs().min()
    assert margin < 1e-3 or torch.equal(logits[0, 9:].argmax(-1), ids[0, 10:])


def test_loading_a_head_draws_no_random_numbers(target: Any, three: Any) -> None:
    """The first call loads the head, and must sample the same tokens as later calls."""
    strategy = Strategy(f"state_head:head={random_eagle3(target)}")
    expected, found = with_and_without(target, strategy, three, **SAMPLED)
    assert torch.equal(found, expected)
