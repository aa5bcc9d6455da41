"""A Llama's forward written out: what transformers makes of the same weights, but for rounding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from paceline.backend.products import Products
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.cpu import amx, avx512_dot
from paceline.cpu.backend import CPU
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.direct import DirectLlama, suits
from paceline.model.loading import draft_lm, load_draft
from paceline.model.model_view import ModelView

SIZES: dict[str, Any] = {
    "vocab_size": 104, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(**SIZES, initializer_range=0.2, attn_implementation="sdpa")
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight += torch.randn(weight.shape) * 0.2
    return model.bfloat16()


def steps(model: CachedLM) -> list[torch.Tensor]:
    """What is said, and the hidden states, in three forwards of two sequences with trees, some
    of whose nodes stay.
    """
    requests = [Request([7, 3, 50, 21, 9], SamplingParams()), Request([60, 2], SamplingParams())]
    for request in requests:
        model.open(request)
    found = []
    for trees, accepted in (
        ([EMPTY_TREE, EMPTY_TREE], [[], []]),
        ([DraftTree([5, 6, 7, 8], [-1, -1, 1, 2]), DraftTree([4, 5], [-1, 0])], [[1, 2], []]),
        ([DraftTree([9], [-1]), DraftTree([1, 2, 3], [-1, -1, 0])], [[], [1]]),
    ):
        logits = model.forward_with_states(requests, trees)
        assert logits.states is not None
        found += [logits.flat.float(), logits.states.float()]
        model.commit(accepted)
        for request, tree, path in zip(requests, trees, accepted, strict=True):
            request.token_ids += [*(tree.token_ids[node] for node in path), 11]
    return found


def test_the_numbers_are_those_of_transformers(llama: Any) -> None:
    products = Products.of_backend(llama, CPU)
    theirs = steps(CachedLM(llama, batch_invariant=True, products=products))
    mine = steps(CachedLM(llama, batch_invariant=True, products=products, view=DirectLlama))
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        assert float((one - other).norm() / other.norm()) < 0.02


def test_other_weights_are_noticed(llama: Any) -> None:
    """The bound above is one that a mistake would break."""
    products = Products.of_backend(llama, CPU)
    wrong = DirectLlama(llama, products)
    wrong._turns = wrong._turns[:, ::-1].copy()  # sines for cosines
    theirs = steps(CachedLM(llama, batch_invariant=True, products=products))
    mine = steps(CachedLM(llama, batch_invariant=True, products=products, view=lambda *_: wrong))
    assert (
        max(
            float((one - other).norm() / other.norm())
            for one, other in zip(mine, theirs, strict=True)
        )
        > 0.1
    )


def test_which_models_it_knows(llama: Any) -> None:
    assert suits(llama)
    other = MistralForCausalLM(MistralConfig(**SIZES))
    assert not suits(other)
    for name, value in (
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("head_dim", 24),
        ("rope_parameters", {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
    ):
        changed = copy.copy(llama)
        changed.config = copy.deepcopy(llama.config)
        setattr(changed.config, name, value)
        assert not suits(changed)


def test_drafts_that_read_states_run_by_it_where_our_products_do() -> None:
    draft = draft_lm(load_draft("smollm2-draft"))
    kind = DirectLlama if amx.available() or avx512_dot.available() else ModelView
    assert isinstance(draft._runner.view, kind)
    assert isinstance(draft.apart()._runner.view, kind)
    assert isinstance(draft_lm(load_draft("smollm2-draft", "float32"))._runner.view, ModelView)
