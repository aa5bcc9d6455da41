"""Check that recurrent models give the same bits with any drafts, chunks and batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.backend.product_calls import MixerOverride
from paceline.backend.products import Products
from paceline.cpu.backend import CPU
from paceline.engine import target_setup
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.invariance.invariance import Invariance, resolve_batch_invariance
from paceline.model.self_check import checked_model
from tests.engine.test_recurrent import make, prompts, random_trees
from tests.support.recurrent_models import BRANCHING

PARAMS = SamplingParams(max_new_tokens=12, ignore_eos=True)


# In bfloat16, rounding moves their logits too far for the self-check if weights are large.
SMALL_WEIGHTS = ("granitemoehybrid", "zamba2")


def in_bfloat16(name: str) -> Any:
    if name not in SMALL_WEIGHTS:
        return copy.deepcopy(make(name)).to(torch.bfloat16)
    model_type, options = BRANCHING[name]
    config = CONFIG_MAPPING[model_type](**{**options, "initializer_range": 0.02})
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config).eval().to(torch.bfloat16)


@pytest.mark.parametrize(
    "name",
    [
        "lfm2",
        "qwen3_5",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                *("lfm3", "qwen3_5_moe", "qwen3_next", "olmo_hybrid", "bailing_hybrid"),
                *("mamba2", "bamba", "falcon_h1", "nemotron_h", "kimi_linear", "lfm2_moe"),
                *("mamba", "falcon_mamba", "jamba", "zamba", "zaya", "inkling"),
                *SMALL_WEIGHTS,
            )
        ),
    ],
)
def test_drafts_chunks_and_batches_change_no_bit(name: str) -> None:
    model, texts = in_bfloat16(name), prompts(5)
    plain = LLM(model, "none", batch_invariant=True)
    expected = [plain.generate([text], PARAMS)[0].token_ids for text in texts]
    for spec, chunk in ((random_trees(), 7), ("auto", 64)):
        llm = LLM(model, spec, batch_invariant=True, max_batch=4)
        llm.model.prefill_chunk = chunk
        assert [out.token_ids for out in llm.generate(texts, PARAMS)] == expected


def test_a_mixer_whose_rows_depend_on_one_another_is_refused() -> None:
    class Uneven(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, rows: Tensor) -> Tensor:
            return self.inner(rows) * (1 + 0.01 * (rows.shape[-2] % 3))  # type: ignore[no-any-return]

    model = copy.deepcopy(make("lfm2"))
    mixer = next(layer.conv for layer in model.model.layers if hasattr(layer, "conv"))
    mixer.out_proj = Uneven(mixer.out_proj)
    with pytest.raises(ConfigError, match=r"give identical bits|recurrent"):
        resolve_batch_invariance(model, True)


@pytest.mark.parametrize("shape", [(24, 12), (3, 1, 20, 12)])
@torch.inference_mode()
def test_products_of_a_mixer_do_not_depend_on_the_number_of_tokens(shape: Any) -> None:
    """A selective scan multiplies weights directly, and their sizes may be odd."""
    noise = torch.Generator().manual_seed(0)
    weights = torch.randn(shape, generator=noise).bfloat16()
    columns = torch.randn(*shape[:-3], 1, 12, 40, generator=noise).bfloat16()
    module = nn.Module()
    with MixerOverride(module, Products(backend=CPU)).calls():
        products = weights @ columns
        alone = weights @ columns[..., 7:8]
    assert products.shape == (*shape[:-3], 1, shape[-2], 40)
    assert torch.equal(products[..., 7:8], alone)
    expected = weights.double() @ columns.double()
    torch.testing.assert_close(products.double(), expected, rtol=0.02, atol=0.02)


def test_auto_disables_invariance_if_the_self_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A different rounding can exceed the tolerance of the self-check."""
    monkeypatch.setattr(
        target_setup,
        "resolve_batch_invariance",
        lambda model, setting, max_batch: Invariance(True, "", None, torch.get_num_threads()),
    )
    check = checked_model

    def refuse_invariant(model: Any, options: dict[str, Any]) -> Any:
        if options["batch_invariant"]:
            raise UnsupportedModelError("too far off.")
        return check(model, options)

    monkeypatch.setattr(target_setup, "checked_model", refuse_invariant)
    llm = LLM(make("lfm2"), "none")
    assert not llm.invariance.on
    assert llm.invariance.reason == "the model's logits differ too much with it: too far off."
    with pytest.raises(UnsupportedModelError, match="too far off"):
        LLM(make("lfm2"), "none", batch_invariant=True)
