"""Test the self-check of unknown architectures, including models that fail it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from paceline import LLM, SamplingParams
from paceline.errors import UnsupportedModelError
from paceline.kv_cache.slot_layer import SlotLayer
from paceline.model.cached_lm import CachedLM
from paceline.model.per_layer import layer_values
from paceline.model.self_check import check_chain_forward, check_tree_forward
from paceline.model.transformers_target import as_cached_lm
from paceline.model.verified import VERIFIED
from tests.support.drafters import ScriptedTree
from tests.support.models import make
from tests.support.shared import reference
from tests.support.tree_models import TREES

SIZES = {"vocab_size": 60, "hidden_size": 32, "initializer_range": 0.25}


def model_of(model_type: str, **options: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **SIZES, **options)
    ).eval()


def test_correct_model_passes_in_both_precisions() -> None:
    model = model_of("llama", num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    check_tree_forward(CachedLM(model))
    check_tree_forward(CachedLM(model.to(torch.bfloat16)))


def test_architecture_outside_the_table_is_checked_and_runs() -> None:
    model = model_of(
        "olmo",
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        pad_token_id=0,
        eos_token_id=1,
    )
    assert model.config.model_type not in VERIFIED
    assert len(LLM(model, drafter="prompt_lookup").generate([[3, 4, 3, 4]])[0].token_ids) > 0


def test_positions_derived_from_slots_are_detected() -> None:
    lm = CachedLM(model_of("bloom", n_layer=2, n_head=2))
    lm.architecture = dataclasses.replace(lm.architecture, takes_masks=True)
    with pytest.raises(UnsupportedModelError, match="BloomForCausalLM"):
        check_tree_forward(lm)


def test_ignored_mask_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = CachedLM(
        model_of("llama", num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    )
    monkeypatch.setattr(type(lm.architecture), "attention_mask", lambda *_: None)
    with pytest.raises(UnsupportedModelError, match="differ from plain ones"):
        check_tree_forward(lm)


def gpt_neo(window: int) -> PreTrainedModel:
    """Return a model whose local layers use windows of cache slots, whatever the mask
    contains.
    """
    return model_of(
        "gpt_neo",
        num_layers=2,
        num_heads=2,
        attention_types=[[["global", "local"], 1]],
        window_size=window,
        max_position_embeddings=512,
        intermediate_size=48,
        eos_token_id=1,
        pad_token_id=0,
    )


@pytest.mark.parametrize("window", [8, 256])
def test_a_model_whose_trees_fail_decodes_with_chains(window: int) -> None:
    model = gpt_neo(window)
    with pytest.raises(UnsupportedModelError, match="logits of a draft tree differ"):
        check_tree_forward(CachedLM(model))
    prompts = [[(7 * place) % 50 + 3 for place in range(length)] for length in (window + 9, 5, 20)]
    known = {tuple(prompt): reference(model, prompt, 20) for prompt in prompts}
    drafter = ScriptedTree(known, 60)
    llm = LLM(model, drafter, max_batch=2)
    assert as_cached_lm(llm.model).chains
    assert not llm.model.takes_trees
    assert not llm.model.apart().takes_trees
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=20))
    assert [out.token_ids for out in outs] == [*known.values()]
    assert sum(out.stats.target_forwards for out in outs) < 40


def test_model_that_fails_with_trees_and_chains_is_refused() -> None:
    """The looped layers of this model write into the cache several times."""
    model = make("dory")
    with pytest.raises(
        UnsupportedModelError, match=r"DoryForCausalLM cannot run a draft tree.*Use model\.generate"
    ):
        LLM(model, "none", batch_invariant=False)


def test_models_bound_to_slots_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(
        "roformer",
        is_decoder=True,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
    )
    assert model.config.model_type not in VERIFIED
    check_chain_forward(CachedLM(model))
    LLM(model, "none")
    # its positions begin at 0 in every forward
    monkeypatch.setattr(SlotLayer, "get_seq_length", lambda self: 0)
    with pytest.raises(UnsupportedModelError, match="logits of a draft chain differ"):
        LLM(model, "none")


@pytest.mark.parametrize("model_type", ["bart", "marian"])
def test_decoders_of_encoder_decoder_models(model_type: str) -> None:
    """Their `generate` forces the last token to be an end-of-sequence token
    (forced_eos_token_id).
    """
    sizes = {"vocab_size": 60, "d_model": 32, "init_std": 0.25, "decoder_layers": 2,
    "decoder_attention_heads": 2,
             "decoder_ffn_dim": 48, "max_position_embeddings": 512, "pad_token_id": 0,
             "eos_token_id": 1}  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes)).eval()
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    with torch.no_grad():
        for _ in range(10):
            ids = torch.cat(
                [ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=-1
            )
    (out,) = LLM(model, "prompt_lookup").generate(
        [[3, 4, 5, 6, 7]], SamplingParams(max_new_tokens=10, ignore_eos=True)
    )
    assert out.token_ids == ids[0, 5:].tolist()


@pytest.mark.parametrize("name", [name for name in TREES if name.startswith("gemma4")])
def test_cache_size_follows_the_layers(name: str) -> None:
    llm = LLM(make(name), "none")
    llm.generate([[3, 4, 5]], SamplingParams(max_new_tokens=2))
    model = as_cached_lm(llm.model)
    assert model.architecture.position_bytes == model._cache.position_bytes > 0


def test_layers_whose_windows_differ_are_refused() -> None:
    model = model_of("llama", num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    model.config.sliding_window = None
    model.config.per_layer_config = {1: {"sliding_window": 8}}
    assert layer_values(model.config, "sliding_window") == [None, 8]
    with pytest.raises(UnsupportedModelError, match="layers that differ in sliding_window"):
        CachedLM(model)
