"""Test projections that mix a token with the preceding tokens, as in Zaya."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.backend.product_calls import ConvolutionOverride
from paceline.backend.products import Products
from paceline.cpu.backend import CPU
from paceline.model.mixers.window import window_mixer
from tests.support import models


def projections(model: Any) -> list[nn.Module]:
    return [layer.self_attn.qkv_proj for layer in model.model.layers]


def test_drafts_of_supported_projections_are_trees() -> None:
    model = models.make("zaya")
    assert all(window_mixer(module) for module in projections(model))
    assert LLM(model, "none").model.takes_trees


def test_projections_with_biases_verify_chains() -> None:
    """With a bias, the state before a text differs from the projection of zeros."""
    config = copy.deepcopy(models.make("zaya").config)
    config.attention_bias = True
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.generation_config.eos_token_id = None
    assert not any(window_mixer(module) for module in projections(model))
    llm = LLM(model, "prompt_lookup")
    assert not llm.model.takes_trees
    (out,) = llm.generate([[5, 6, 7] * 4], SamplingParams(max_new_tokens=8, ignore_eos=True))
    ids = model.generate(torch.tensor([[5, 6, 7] * 4]), max_new_tokens=8, do_sample=False)
    assert out.token_ids == ids[0, 12:].tolist()


@pytest.mark.parametrize("groups", [48, 6])
@torch.inference_mode()
def test_convolutions_do_not_depend_on_the_number_of_tokens(groups: int) -> None:
    torch.manual_seed(0)
    module = nn.Conv1d(48, 48, 3, groups=groups, dtype=torch.bfloat16)
    convolve = ConvolutionOverride(module, Products(backend=CPU))
    columns = torch.randn(1, 48, 40, dtype=torch.bfloat16)
    found = convolve(columns)
    torch.testing.assert_close(found, module(columns), rtol=0.02, atol=0.02)
    for first, last in ((0, 3), (7, 12), (36, 40)):
        assert torch.equal(convolve(columns[..., first:last]), found[..., first : last - 2])
