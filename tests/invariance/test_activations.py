"""Test that a row's activations do not depend on the row's place in the forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from paceline import LLM, SamplingParams, demo
from paceline.backend.activations import activation_overrides, in_whole_vectors
from paceline.cpu.product_choice import everywhere
from paceline.model.model_view import ModelView
from tests.support.models import make
from tests.support.tree_models import llama

COUNT = 301


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def rows(width: int, count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(count, width, generator=torch.Generator().manual_seed(1)) * 2).to(dtype)


def narrow_llama() -> Any:
    """Return a model whose activations are no multiple of a vector."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **llama(intermediate_size=80, vocab_size=96))
    return AutoModelForCausalLM.from_config(config).eval()


def feed_forward(name: str) -> Any:
    """Return the part of a view's layer that has activation functions."""
    model = narrow_llama() if name == "llama" else make(name)
    products = everywhere(model)
    assert products is not None
    layer: Any = ModelView(model, products).module.model.layers[0]
    return layer.mlp if name == "llama" else lambda inputs: layer.feed_forward.router(inputs)[0]


@pytest.mark.parametrize("name", ["llama", "llama4"])
@torch.inference_mode()
def test_row_counts_change_no_bit(name: str) -> None:
    """Test an MLP and a router of two experts, whose scores are sigmoids."""
    compute, inputs = feed_forward(name), rows(64)
    together = compute(inputs)
    for count in range(1, COUNT):
        assert torch.equal(compute(inputs[:count]), together[:count]), count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [functional.silu, functional.gelu, torch.sigmoid])
def test_threads_share_whole_vectors(threads: Any, function: Any, dtype: torch.dtype) -> None:
    threads(1)
    inputs = rows(700, dtype=dtype)
    expected = in_whole_vectors(function, inputs)
    torch.testing.assert_close(expected, function(inputs))
    for number in (1, 2, 3, 4):
        threads(number)
        for count in (0, 1, 47, 94, 141, 188, COUNT):
            assert torch.equal(in_whole_vectors(function, inputs[:count]), expected[:count])


def test_functions_of_several_elements_are_kept() -> None:
    model = narrow_llama()
    assert len(activation_overrides(model)) == 2
    model.model.layers[0].mlp.act_fn = torch.nn.Softmax(-1)
    assert len(activation_overrides(model)) == 1


def test_prompts_of_a_batch_keep_their_bits() -> None:
    """The last of the batch's 279 rows was computed differently from that row alone."""
    llm = LLM(demo.TARGET, "none", dtype="float32", batch_invariant=True)
    params = SamplingParams(2, logprobs=0, prompt_logprobs=0, ignore_eos=True)
    for start in range(6):
        prompts = [[(start + 7 * row + 131 * at) % 4096 for at in range(93)] for row in range(3)]
        for prompt, out in zip(prompts, llm.generate(prompts, params), strict=True):
            (alone,) = llm.generate([prompt], params)
            assert out.logprobs == alone.logprobs
            assert out.prompt_logprobs == alone.prompt_logprobs
