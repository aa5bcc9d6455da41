"""The check an unknown architecture has to pass, and that it can fail."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from paceline import LLM
from paceline.engine.model import CachedLM
from paceline.engine.selfcheck import VERIFIED, check_tree_forward
from paceline.errors import UnsupportedModelError

SIZES = {"vocab_size": 60, "hidden_size": 32, "initializer_range": 0.25}


def model_of(model_type: str, **options: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES, **options)).eval()


def test_a_sound_model_passes_in_either_precision() -> None:
    model = model_of("llama", num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    check_tree_forward(CachedLM(model))
    check_tree_forward(CachedLM(model.to(torch.bfloat16)))


def test_an_architecture_outside_the_table_is_measured_and_runs() -> None:
    model = model_of("olmo", num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, pad_token_id=0, eos_token_id=1)
    assert model.config.model_type not in VERIFIED
    assert len(LLM(model, drafter="prompt_lookup").generate([[3, 4, 3, 4]])[0].token_ids) > 0


def test_positions_taken_from_slots_are_found_out() -> None:
    lm = CachedLM(model_of("bloom", n_layer=2, n_head=2))
    lm.architecture = dataclasses.replace(lm.architecture, takes_masks=True)
    with pytest.raises(UnsupportedModelError, match="BloomForCausalLM"):
        check_tree_forward(lm)


def test_a_mask_that_is_ignored_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = CachedLM(model_of("llama", num_hidden_layers=2, num_attention_heads=2, intermediate_size=48))
    monkeypatch.setattr(type(lm.architecture), "attention_mask", lambda *_: None)
    with pytest.raises(UnsupportedModelError, match="differ from plain ones"):
        check_tree_forward(lm)
