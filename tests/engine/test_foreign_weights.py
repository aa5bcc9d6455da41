"""Test models with weights and modules of other libraries.

They are never read as plain memory or written to, and their errors are handled.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline import LLM, SamplingParams
from paceline.attention import registered
from paceline.backend.plain_tensors import is_plain
from paceline.backend.products import Products, plain_products
from paceline.backend.products import replaceable as replaceable_by
from paceline.cpu import backend, product_choice
from paceline.cpu.backend import CPU
from paceline.cpu.linear.dispatch import product as own_product
from paceline.cpu.topk import argmax, topk
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.integrations.transformers import Strategy
from paceline.invariance import probing
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.invariance.probing import probe_model
from paceline.invariance.row_module_search import find_row_modules
from paceline.model.eagle.modules import embedding_and_lm_head
from paceline.model.identity import model_identity
from paceline.model.model_view import ModelView
from paceline.model.quantisation import foreign_weights
from paceline.model.reduced_vocabulary import keep_tokens
from paceline.util.environment_key import environment_key
from tests.support.foreign import FOREIGN, KINDS, Packed, WritingThrough, quantised
from tests.support.models import make

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 3] * 8, [4]]
PARAMS = SamplingParams(max_new_tokens=12, ignore_eos=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        product_choice, "MIN_TIMED_WEIGHTS", 0
    )  # allow our products on small models


def checksums(model: Any) -> dict[str, str]:
    """Return a checksum of every tensor of a model."""
    found = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        held = (tensor.numbers, tensor.scales) if isinstance(tensor, Packed) else (tensor,)
        data = b"".join(
            one.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for one in held
        )
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def generated(model: Any) -> list[list[int]]:
    rows = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        rows.append(made[0, len(prompt) :].tolist())
    return rows


@pytest.mark.parametrize("invariance", ["auto", False])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_equal_generate_and_weights_stay(kind: str, invariance: Any) -> None:
    model = quantised(kind)
    before, expected = checksums(model), generated(model)
    llm = LLM(model, "prompt_lookup", max_batch=2, batch_invariant=invariance)
    assert checksums(model) == before
    outs = llm.generate(PROMPTS, PARAMS)
    assert [out.token_ids for out in outs] == expected
    assert not any(out.stats.batch_invariant for out in outs)
    strategy = Strategy("lookahead", batch_invariant=invariance)
    ids = model.generate(
        torch.tensor(PROMPTS[:1]),
        max_new_tokens=12,
        eos_token_id=None,
        pad_token_id=0,
        custom_generate=strategy,
    )
    assert ids[0, len(PROMPTS[0]) :].tolist() == expected[0]
    assert checksums(model) == before
    assert generated(model) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", FOREIGN)
def test_draft_model_of_foreign_weights_drafts(kind: str, dtype: torch.dtype) -> None:
    """Check half precision, where a float32 copy may not exist in the weights' library."""
    target, draft = make("llama", "sdpa"), quantised(kind, dtype)
    before = checksums(draft)
    outs = LLM(
        target, "draft_model", draft_model=draft, max_batch=2, batch_invariant=False
    ).generate(PROMPTS, PARAMS)
    assert [out.token_ids for out in outs] == generated(target)
    assert sum(out.stats.drafted_tokens for out in outs)
    assert checksums(draft) == before


@pytest.mark.parametrize("kind", KINDS)
def test_batch_invariance_is_refused_with_the_reason(kind: str) -> None:
    model = quantised(kind)
    before = checksums(model)
    with pytest.raises(
        ConfigError, match=r"batch_invariant: got True; .*q_proj.* Pass 'auto' or False\."
    ):
        resolve_batch_invariance(model, True)
    found = resolve_batch_invariance(model, "auto")
    assert not found.on
    assert "q_proj" in found.reason
    assert checksums(model) == before


def test_foreign_weights_are_named() -> None:
    words = {kind: foreign_weights(quantised(kind)) for kind in FOREIGN}
    name = "model.layers.0.self_attn.q_proj"
    assert words == {
        "a tensor subclass": f"{name}.weight is a tests.support.foreign.Packed",
        "normal mode alone": f"{name}.weight is a tests.support.foreign.NormalModePacked",
        "writing through": f"{name}._parameters is a tests.support.foreign.WritingThrough",
        "forward replaced": f"{name}.forward is not that of its class",
        "integers in buffers": f"{name}.qweight holds uint8",
        "float8": f"{name}.weight holds float8_e4m3fn",
    }


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "gpt2",
        "gpt_neox",
        "gemma2",
        "phi3",
        "bloom",
        "gpt_bigcode",
        "llama4",
        "gpt_oss",
        "mixtral",
    ],
)
def test_models_of_transformers_are_not_foreign(name: str) -> None:
    assert foreign_weights(make(name)) is None


@pytest.mark.parametrize("kind", FOREIGN)
def test_only_plain_products_are_replaced(kind: str) -> None:
    model = quantised(kind)
    assert replaceable_by(model, CPU) == ()
    assert plain_products(model) == (model.lm_head,)
    model.lm_head = nn.Linear(64, 104, bias=False)
    assert replaceable_by(model, CPU) == (model.lm_head,)


def test_weight_quantised_later_uses_its_own_code() -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    products = Products(replaceable_by(model, CPU), backend=CPU)
    down = model.model.layers[1].mlp.down_proj
    assert down in products.modules
    viewed = ModelView(model, products).module
    down.weight = nn.Parameter(Packed.of(down.weight.detach()), requires_grad=False)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.allclose(viewed(ids).logits, expected, atol=1e-4)
    vars(down)["_parameters"] = WritingThrough({"bias": None})
    with torch.no_grad(), pytest.raises(AttributeError, match="weight"):
        viewed(ids)


def test_norms_of_foreign_weights_are_not_replaced() -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    assert len(CPU.rms_norms(model)) == 5
    norm = model.model.norm
    norm.weight = nn.Parameter(norm.weight.detach().as_subclass(PlainSubclass), requires_grad=False)
    vars(model.model.layers[0].input_layernorm)["_parameters"] = WritingThrough(
        {"weight": norm.weight}
    )
    assert len(CPU.rms_norms(model)) == 3


class PlainSubclass(Tensor):
    """Tensor subclass without changes."""


def test_attention_by_position_refuses_tensor_subclasses() -> None:
    states = torch.randn(1, 2, 3, 8)
    module = nn.Module()
    for given in (
        (states.as_subclass(PlainSubclass), states, states),
        (states, states, states.as_subclass(PlainSubclass)),
    ):
        with pytest.raises(UnsupportedModelError, match=r"got tensors of the classes .*Subclass"):
            registered._attend(module, given[0], given[1], given[2], None)
    with pytest.raises(UnsupportedModelError, match=r"expected one dtype"):
        registered._attend(module, states, states, states.double(), None)
    with pytest.raises(UnsupportedModelError, match="got tensors of the classes"):
        registered._attend(
            module, states, states, states, None, s_aux=torch.zeros(2).as_subclass(PlainSubclass)
        )


def test_torch_searches_logits_of_subclasses() -> None:
    logits = torch.randn(3, 16)
    other = logits.as_subclass(PlainSubclass)
    assert torch.equal(argmax(other), logits.argmax(-1))
    assert topk(other, 2)[0].tolist() == logits.topk(2).indices.tolist()


def test_embeddings_of_foreign_weights_are_refused() -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    assert embedding_and_lm_head(model)
    model.lm_head.weight = nn.Parameter(
        Packed.of(model.lm_head.weight.detach()), requires_grad=False
    )
    with pytest.raises(UnsupportedModelError, match="not a plain weight"):
        embedding_and_lm_head(model)
    with pytest.raises(ConfigError, match="no plain LM head"):
        keep_tokens(model, [3, 4])
    assert model_identity(model)[0] != model_identity(make("llama", "sdpa"))[0]


def test_quantised_weights_have_their_own_environment_key() -> None:
    """Check weights as torchao quantises them, without changes to configuration or dtypes."""
    assert environment_key(quantised("a tensor subclass")) != environment_key(make("llama", "sdpa"))


@pytest.mark.parametrize("name", ["llama", "gpt2", "cohere2"])
def test_probe_leaves_the_model_unchanged(name: str) -> None:
    model = copy.deepcopy(make(name, "sdpa"))
    before, held = checksums(model), [one._parameters for one in model.modules()]
    tensors = [*model.parameters()]
    probe_model(model)
    assert checksums(model) == before
    assert [id(one._parameters) for one in model.modules()] == [id(one) for one in held]
    assert all(one is other for one, other in zip(model.parameters(), tensors, strict=True))
    if (ours := product_choice.everywhere(model)) is not None:
        probe_model(model, ours)
    assert checksums(model) == before
    assert not any("forward" in vars(one) for one in model.modules())


def test_probe_runs_our_products(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    model.lm_head = nn.Linear(64, 104, bias=False)
    ours, tried, whole = product_choice.everywhere(model), [], own_product
    assert ours is not None
    monkeypatch.setattr(
        backend,
        "product",
        lambda rows, weight, bias: tried.append(id(weight)) or whole(rows, weight, bias),  # type: ignore[func-returns-value]
    )
    modules, _ = find_row_modules(ModelView(model, ours).module)
    (product, *_) = [module for module in modules if module.is_product]
    weight = torch.randn_like(product.matrix)
    tried.clear()
    made = product.function(weight)(torch.ones(5, 64))
    assert tried == [id(weight)]
    product.original.function(weight)(torch.ones(5, 64))
    assert tried == [id(weight)]
    assert torch.allclose(made, torch.ones(5, 64) @ weight.T, atol=1e-4)


@pytest.mark.parametrize(
    "step", ["padding_cost", "forward_cost", "_why_not_invariant", "widest_class"]
)
def test_failed_probe_is_reported_and_not_cached(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ProbeFailure(Exception):
        pass

    def fail(*_: object) -> None:
        raise ProbeFailure("out of luck")

    model = make("llama", "sdpa")
    with monkeypatch.context() as patch:
        patch.setattr(probing, step, fail)
        found = resolve_batch_invariance(model, "auto")
        assert found.reason == "it was tried on cpu and failed: out of luck (ProbeFailure)"
        assert LLM(model, "none").generate([[3, 4]], PARAMS)[0].token_ids
        with pytest.raises(
            ConfigError, match="got True; it was tried on cpu and failed: out of luck"
        ):
            resolve_batch_invariance(model, True)
    assert "failed" not in resolve_batch_invariance(model, "auto").reason


def test_plain_tensors() -> None:
    weight = nn.Linear(8, 8).weight
    assert is_plain(weight)
    assert is_plain(weight.detach())
    assert not any(
        map(
            is_plain,
            (
                None,
                weight.to("meta"),
                weight.detach().to_sparse(),
                weight.detach().as_subclass(PlainSubclass),
            ),
        )
    )
    freed = weight.detach().clone()
    freed.untyped_storage().resize_(0)
    assert not is_plain(freed)
