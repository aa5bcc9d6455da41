"""Test Inkling: biases for pairs of positions, shared experts, and chains instead of trees."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from paceline import LLM, DraftTree, SamplingParams
from paceline.backend.product_calls import DenseExpertsOverride, PositionBiasOverride
from paceline.core.request import Request
from paceline.cpu.product_choice import everywhere
from paceline.invariance.row_module_search import find_row_modules
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from paceline.model.self_check import count_differing_rows
from tests.engine.test_recurrent import prompts
from tests.support.drafters import ScriptedTree
from tests.support.recurrent_models import CHAINED
from tests.support.tree_models import VOCAB

PARAMS = SamplingParams(max_new_tokens=12, ignore_eos=True)


@functools.cache
def inkling(dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return a tiny Inkling whose windows and bias ranges are shorter than the texts."""
    name, options = CHAINED["inkling"]
    changes = {"rel_extent": 16, "log_scaling_n_floor": 24, "n_shared_experts": 2}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**{**options, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    for module in model.modules():
        if "proj" in module._parameters:
            torch.nn.init.normal_(module.proj, std=1.0)
    return model


def logits_of(chunk: int, text: list[int], tree: list[int]) -> torch.Tensor:
    """Return the logits after a text and each token of a chain, computed in chunks."""
    lm = CachedLM(inkling(), chunk, batch_invariant=True, products=everywhere(inkling()))
    request = Request(text, SamplingParams())
    lm.open(request)
    while not request.ends_prefill(chunk):
        lm.feed([request])
    return lm.forward([request], [DraftTree(tree, list(range(-1, len(tree) - 1)))])[0]


def test_chunks_and_chains_change_no_bit() -> None:
    text = [(7 * index + 3) % VOCAB for index in range(70)]
    for start in (5, 17, 30, 62):
        together = logits_of(9, text[:start], text[start : start + 8])
        for count in range(9):
            alone = logits_of(64, text[: start + count], [])
            assert torch.equal(alone[0], together[count]), (start, count)


@pytest.mark.slow
def test_drafts_and_batches_change_no_bit() -> None:
    texts = prompts(4, seed=3)
    plain = LLM(inkling(), "none", batch_invariant=True)
    known = {tuple(text): plain.generate([text], PARAMS)[0].token_ids for text in texts}
    llm = LLM(inkling(), ScriptedTree(known, VOCAB), batch_invariant=True, max_batch=3)
    outs = llm.generate(texts, PARAMS)
    assert [out.token_ids for out in outs] == [*known.values()]
    assert sum(out.stats.target_forwards for out in outs) < len(texts) * PARAMS.max_new_tokens


@torch.inference_mode()
def test_a_view_computes_what_the_model_does() -> None:
    model = inkling(torch.float32)
    products = everywhere(model)
    assert products is not None
    assert {DenseExpertsOverride, PositionBiasOverride} <= {*products.routing.values()}
    token_ids = torch.arange(60)[None]
    expected = model(input_ids=token_ids, use_cache=False).logits
    logits = ModelView(model, products).module(input_ids=token_ids, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["rel_logits_proj", "shared_experts", "k_sconv", "attn_sconv"])
def test_the_self_test_calls_each_kind_of_module(name: str) -> None:
    model = inkling()
    view = ModelView(model, everywhere(model)).module
    modules, unknown = find_row_modules(view)
    assert not unknown
    (module, *_) = [module for module in modules if module.name.endswith(name)]
    noise = torch.Generator().manual_seed(1)
    rows = torch.randn(40, *module.row_shape, generator=noise).to(module.like.dtype)
    function = module.function()
    together = function(rows)
    assert len(together) == 40
    assert not torch.equal(together[7], together[8])
    assert torch.equal(function(rows[7:8])[0], together[7])


def test_bias_that_depends_on_other_rows_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(inkling())
    kind = type(model.model.layers[0].self_attn.rel_logits_proj)
    forward = kind.forward

    def uneven(self: Any, states: torch.Tensor, *positions: torch.Tensor) -> torch.Tensor:
        return forward(self, states, *positions) * (1 + 0.1 * (states.shape[1] % 3))  # type: ignore[no-any-return]

    products = everywhere(model)
    same = [CachedLM(model, size, batch_invariant=True, products=products) for size in (512, 16)]
    assert count_differing_rows(*same)[0] == 0
    monkeypatch.setattr(kind, "forward", uneven)
    other = [CachedLM(model, size, batch_invariant=True, products=products) for size in (512, 16)]
    assert count_differing_rows(*other)[0] > 0
