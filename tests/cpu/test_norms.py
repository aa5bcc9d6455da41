"""Check compiled RMS norms and the search for modules that they can replace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from paceline.backend.products import Products
from paceline.cpu.backend import CPU, CpuBackend
from paceline.cpu.linear.norms import rms_norm
from paceline.model.model_view import ModelView
from tests.support.models import make

DTYPES = [torch.float32, torch.bfloat16]
_EPS = 1e-5


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def norm_module(kind: type[nn.Module], size: int, dtype: torch.dtype) -> nn.Module:
    module: Any = kind(size, eps=_EPS)
    with torch.no_grad():
        module.weight.copy_(numbers(size, dtype=torch.float32, seed=1))
    result: nn.Module = module.to(dtype).eval()
    return result


class _Holder(nn.Module):
    """Model with the attributes that the search for norms reads."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.all = nn.ModuleList(modules)


def found(*modules: nn.Module) -> tuple[nn.Module, ...]:
    model: Any = _Holder(*modules)
    return tuple(CPU.rms_norms(model))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 72, 576])
def test_results_agree_with_transformers(dtype: torch.dtype, size: int) -> None:
    module: Any = norm_module(LlamaRMSNorm, size, dtype)
    rows = torch.cat(
        (
            numbers(6, size, dtype=dtype),
            1e-4 * numbers(1, size, dtype=dtype),
            torch.zeros(1, size, dtype=dtype),
        )
    )
    with torch.inference_mode():
        expected, result = module(rows), rms_norm(rows, module.weight, _EPS)
    assert result.dtype == dtype
    assert torch.allclose(
        result.float(), expected.float(), rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=0
    )
    assert float((result != expected).float().mean()) < (1.0 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_a_row_depend_on_that_row_only(dtype: torch.dtype) -> None:
    rows, weight = numbers(33, 96, dtype=dtype), numbers(96, dtype=dtype, seed=1)
    together = rms_norm(rows, weight, _EPS)
    for count in (1, 2, 7, 32):
        assert torch.equal(rms_norm(rows[:count], weight, _EPS), together[:count])
    assert torch.equal(
        rms_norm(rows.view(1, 3, 11, 96).transpose(1, 2), weight, _EPS)[0, 4, 2],
        together[2 * 11 + 4],
    )


def test_nan_stays_nan() -> None:
    rows = numbers(3, 16, dtype=torch.bfloat16)
    rows[1, 3] = torch.nan
    rows[2, 5] = torch.inf
    result = rms_norm(rows, torch.ones(16, dtype=torch.bfloat16), _EPS)
    assert result[0].isfinite().all()
    assert result[1].isnan().all()
    assert result[2, 5].isnan()


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_with_the_same_formula_are_found(dtype: torch.dtype) -> None:
    same = [norm_module(kind, 64, dtype) for kind in (LlamaRMSNorm, Qwen3RMSNorm)]
    others = [
        norm_module(GemmaRMSNorm, 64, dtype),
        nn.LayerNorm(64, bias=False).to(dtype),
        norm_module(LlamaRMSNorm, 60, dtype),
    ]
    assert found(*same, *others) == tuple(same)
    assert not found(norm_module(LlamaRMSNorm, 64, torch.float16))


class _Other(nn.Module):
    """Norm of the same name and parameters with another formula."""

    def __init__(self, how: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(64, dtype=torch.float32, seed=1))
        self.variance_epsilon, self._how = _EPS, how

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self._how(rows, self.weight)


def _same(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + _EPS))


@pytest.mark.parametrize(
    ("formula", "is_found"),
    [
        (_same, True),
        (lambda rows, weight: _same(rows - rows.mean(-1, keepdim=True), weight), False),
        (
            lambda rows, weight: (
                weight * rows / (rows.square().mean(-1, keepdim=True).sqrt() + _EPS)
            ),
            False,
        ),
        (lambda rows, weight: _same(rows, 1 + weight), False),
        (lambda rows, weight: _same(rows, weight)[..., :8], False),
        (lambda rows, weight: _same(rows, weight).double(), False),
        (lambda rows, weight, gate: _same(rows, weight) * gate, False),
    ],
)
def test_norms_with_another_formula_are_left_alone(
    formula: Callable[..., torch.Tensor], is_found: bool
) -> None:
    assert bool(found(_Other(formula))) is is_found


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma"])
def test_norms_come_with_our_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(make(name))
    products = Products.of_backend(model, CPU)
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    assert norms
    assert len(products.norms) == (0 if name == "gemma" else len(norms))
    calls: list[int] = []

    def watched(*args: Any) -> torch.Tensor:
        calls.append(1)
        return rms_norm(*args)

    monkeypatch.setattr(CpuBackend, "rms_norm", staticmethod(watched))
    ids, viewed = torch.tensor([[3, 4, 5]]), ModelView(model, products).module
    with torch.inference_mode():
        expected = model(ids).logits
        assert torch.allclose(viewed(ids).logits, expected, atol=1e-4)
        assert len(calls) == len(products.norms)
        model(ids)
        ModelView(model, Products(products.modules, backend=CPU)).module(
            ids
        )  # somebody else's, without
    assert len(calls) == len(products.norms)
    assert not any("forward" in vars(module) for module in norms)
    assert viewed(ids).logits.requires_grad
    assert len(calls) == len(products.norms)


def test_a_norm_with_a_replaced_forward_is_left_alone() -> None:
    model = copy.deepcopy(make("llama"))
    first = next(module for module in model.modules() if isinstance(module, LlamaRMSNorm))
    vars(first)["forward"] = lambda rows: rows
    assert first not in Products.of_backend(model, CPU).norms


def test_norms_with_a_gate_are_left_to_their_modules() -> None:
    gated = Qwen3NextRMSNormGated(64, eps=_EPS).bfloat16()
    plain = norm_module(LlamaRMSNorm, 64, torch.bfloat16)
    assert found(gated, plain) == (plain,)
