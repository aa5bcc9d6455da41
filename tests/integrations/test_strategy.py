"""What a Strategy keeps between calls, and what it lets go."""

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
    both,
    make,
    padded,
    words,
)
from tests.support.shared import ScriptedTree


def test_nothing_is_left_after_an_interruption(target: Any, draft: Any, three: Any) -> None:
    scripted = ScriptedTree({}, VOCAB)
    for drafter in ("prompt_lookup", "draft_model", scripted):
        strategy = Strategy(drafter, draft_model=draft if drafter == "draft_model" else None)
        streamer = Recorder(fail_at=0 if drafter is scripted else 4)
        # the script has no answers: `propose` raises
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
        for engine in [held[2] for held in strategy._engines.values()]:
            assert engine.model.open_sequences == 0
        state = [value for value in vars(strategy.drafter).values() if isinstance(value, dict)]
        assert not any(state)
        assert (
            getattr(strategy.drafter, "_draft", None) is None
            or strategy.drafter._draft.open_sequences == 0  # type: ignore[attr-defined]
        )
        expected, found = both(target, Strategy() if drafter is scripted else strategy, three)
        assert torch.equal(found, expected)


def test_a_drafter_that_fails_leaves_no_slot(target: Any, three: Any) -> None:
    drafter = ScriptedTree({}, VOCAB)
    strategy = Strategy(drafter)
    with pytest.raises(KeyError):
        both(target, strategy, three)
    assert drafter.open == set()
    assert strategy._engines[target][2].model.open_sequences == 0


def test_the_engine_is_kept_until_the_model_changes() -> None:
    fresh = make("llama", "sdpa")
    strategy = Strategy("prompt_lookup")
    inputs = padded([[5, 9, 33, 7] * 4, [11, 3, 4] * 4])
    both(fresh, strategy, inputs)
    engine = strategy._engines[fresh][2]
    expected, found = both(fresh, strategy, inputs)
    assert strategy._engines[fresh][2] is engine
    fresh.set_attn_implementation("eager")  # another kind of mask: the old engine's would be wrong
    expected, found = both(fresh, strategy, inputs)
    assert torch.equal(found, expected)
    assert strategy._engines[fresh][2] is not engine
    fresh.double()
    expected, found = both(fresh, strategy, padded([[5, 9, 33, 7] * 4]))
    assert torch.equal(found, expected)


def test_a_model_can_go(one: Any) -> None:
    strategy = Strategy()
    model = copy.deepcopy(make("llama"))  # `make` keeps its own
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
        both(target, strategy, three, **SAMPLED)
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
    assert torch.equal(*both(target, strategy, one))


def test_memory_grows_with_the_answer(target: Any) -> None:
    strategy = Strategy("prompt_lookup")
    options = {
        "do_sample": False,
        "max_new_tokens": 700,
        "eos_token_id": None,
        "custom_generate": strategy,
    }
    ids = target.generate(**padded([words(4, 10)]), **options)
    assert strategy.stats[0].new_tokens == 700
    logits = target(ids[:, :-1]).logits  # where two tokens are nearly as likely, rounding decides
    margin = logits[0, 9:].topk(2).values.diff().abs().min()
    assert margin < 1e-3 or torch.equal(logits[0, 9:].argmax(-1), ids[0, 10:])
