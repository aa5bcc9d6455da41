"""Test the check that the logits of a row do not depend on other rows of the forward pass."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline import LLM, SamplingParams
from paceline.errors import UnsupportedModelError
from paceline.integrations.transformers import Strategy
from paceline.model.row_check import check_rows
from tests.support.foreign import KINDS, quantised
from tests.support.models import make

FEW = SamplingParams(max_new_tokens=3, ignore_eos=True)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Rounding(nn.Linear):
    """Product that first rounds its rows with `round_rows`."""

    round_rows: Callable[[Tensor], Tensor]

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(type(self).round_rows(input), self.weight, self.bias)


def int8(rows: Tensor, scale: Tensor) -> Tensor:
    return ((rows / scale).round().clamp(-127, 127) * scale).to(rows.dtype)


def float8(rows: Tensor, scale: Tensor) -> Tensor:
    return ((rows / scale).to(torch.float8_e4m3fn).float() * scale).to(rows.dtype)


def of_all_rows(rows: Tensor) -> Tensor:
    return rows.float().abs().amax().clamp(min=1e-30)


def of_each_row(rows: Tensor) -> Tensor:
    return rows.float().abs().amax(-1, keepdim=True).clamp(min=1e-30)


def of_each_block(rows: Tensor) -> Tensor:
    """Round with a scale per row and block of 16 values (DeepSeek's FP8 uses blocks of 128)."""
    blocks = rows.float().reshape(*rows.shape[:-1], -1, 16)
    return of_each_row(blocks).expand_as(blocks).flatten(-2)


def outliers(rows: Tensor) -> Tensor:
    """Round all columns except those with a large value in any row, as in LLM.int8()."""
    is_large = rows.abs().flatten(0, -2).amax(0) > 6
    return torch.where(is_large, rows, int8(rows, of_each_row(rows) / 127))


def above_some_rows(rows: Tensor) -> Tensor:
    return int8(rows, of_each_row(rows) / 127) if rows[..., 0].numel() > 32 else rows


DEPENDENT: dict[str, Any] = {
    "int8, one scale": lambda rows: int8(rows, of_all_rows(rows) / 127),
    "FP8, one scale": lambda rows: float8(rows, of_all_rows(rows) / 448),
    "outliers of all rows": outliers,
    "above some rows": above_some_rows,
    "mean of all rows": lambda rows: rows - rows.flatten(0, -2).mean(0),
}
INDEPENDENT: dict[str, Any] = {
    "int8, a scale per row": lambda rows: int8(rows, of_each_row(rows) / 127),
    "FP8, a scale per row": lambda rows: float8(rows, of_each_row(rows) / 448),
    "FP8, a scale per block": lambda rows: float8(rows, of_each_block(rows) / 448),
    "FP8, a scale from calibration": lambda rows: float8(
        rows.clamp(-4, 4), torch.tensor(4.0 / 448)
    ),
    "no rounding": lambda rows: rows,
}


def rounding(rule: Any, dtype: torch.dtype = torch.float32, name: str = "llama") -> Any:
    """Return the tiny model with products that round their rows."""
    model = copy.deepcopy(make(name, "sdpa")).to(dtype)
    kind = type("Rounding", (Rounding,), {"round_rows": staticmethod(rule)})
    for layer in model.model.layers:
        for module in layer.modules():
            if type(module) is nn.Linear:
                module.__class__ = kind
    return model


def sums(model: Any) -> list[str]:
    tensors = [*model.parameters(), *model.buffers()]
    return [
        hashlib.sha256(one.detach().contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
        for one in tensors
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", DEPENDENT)
def test_dependent_rows_are_refused(kind: str, dtype: torch.dtype) -> None:
    with pytest.raises(
        UnsupportedModelError,
        match=r"q_proj \(.*Rounding.*(change by [0-9.e+-]+ of the|differ by [0-9.e-]+ from)",
    ):
        check_rows(rounding(DEPENDENT[kind], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", INDEPENDENT)
def test_independent_rows_are_admitted(kind: str, dtype: torch.dtype) -> None:
    model = rounding(INDEPENDENT[kind], dtype)
    before, held = sums(model), [dict(vars(one)) for one in model.modules()]
    check_rows(model)
    assert sums(model) == before
    assert [dict(vars(one)) for one in model.modules()] == held


def test_all_ways_to_load_a_model_are_checked() -> None:
    model = rounding(DEPENDENT["int8, one scale"])
    for use in (
        lambda: LLM(model, "none"),
        lambda: LLM(model, "none", batch_invariant=False),
        lambda: model.generate(
            torch.tensor([[1, 5]]), max_new_tokens=2, custom_generate=Strategy()
        ),
    ):
        with pytest.raises(UnsupportedModelError, match="rows of a forward pass depend on one"):
            use()


def test_a_draft_model_needs_no_check() -> None:
    draft, target = rounding(DEPENDENT["int8, one scale"]), make("llama", "sdpa")
    prompt = [5, 6, 7, 5, 6, 7]
    (out,) = LLM(target, "draft_model", draft_model=draft).generate([prompt], FEW)
    ids = target.generate(torch.tensor([prompt]), max_new_tokens=3, do_sample=False)
    assert out.token_ids == ids[0, len(prompt) :].tolist()


def test_a_single_module_is_found_and_named() -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    down = model.model.layers[1].mlp.down_proj
    down.__class__ = type(
        "One", (Rounding,), {"round_rows": staticmethod(DEPENDENT["FP8, one scale"])}
    )
    with pytest.raises(UnsupportedModelError, match=r"outputs of model\.layers\.1\.mlp\.down_proj"):
        check_rows(model)


def test_logits_reveal_a_module_that_cannot_run_alone() -> None:
    class Inside(nn.Module):
        """Module that computes its product itself and takes two arguments."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, rows: Tensor, _: object = None) -> Tensor:
            made: Tensor = self.inner(DEPENDENT["int8, one scale"](rows))
            return made

    class Calling(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = Inside(inner)

        def forward(self, rows: Tensor) -> Tensor:
            made: Tensor = self.inner(rows, None)
            if rows.shape[0] != 2:
                raise AssertionError("two texts only")
            return made

    model = copy.deepcopy(make("llama", "sdpa"))
    for layer in model.model.layers:
        layer.mlp = Calling(layer.mlp)
    with pytest.raises(
        UnsupportedModelError, match=r"the logits change by [0-9.e+-]+ of the largest"
    ):
        check_rows(model)


def test_kernels_without_a_fixed_order_are_admitted() -> None:
    """Their sums differ in the last bits between two equal calls."""

    def shaken(rows: Tensor) -> Tensor:
        return rows * (1 + 1e-6 * torch.rand(rows.shape))

    check_rows(rounding(shaken))
    with pytest.raises(UnsupportedModelError, match="depend on one another"):
        check_rows(rounding(lambda rows: shaken(DEPENDENT["int8, one scale"](rows))))


def test_hooks_are_checked() -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    handle = model.model.layers[0].mlp.register_forward_pre_hook(
        lambda _, given: (DEPENDENT["int8, one scale"](given[0]),)
    )
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.mlp"):
        check_rows(model)
    handle.remove()
    check_rows(model)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_mixtures_of_experts(name: str) -> None:
    check_rows(rounding(INDEPENDENT["int8, a scale per row"], name=name))
    with pytest.raises(UnsupportedModelError, match="depend on one another"):
        check_rows(rounding(DEPENDENT["int8, one scale"], name=name))


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_weights_are_admitted(kind: str) -> None:
    check_rows(quantised(kind))


def test_models_of_torch_modules_need_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    monkeypatch.setattr(type(model), "forward", None)
    check_rows(model)


def test_failing_model_reports_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = rounding(INDEPENDENT["no rounding"])

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("no kernel")

    monkeypatch.setattr(type(model), "forward", fail)
    with pytest.raises(
        UnsupportedModelError, match=r"cannot be checked.*no kernel.*model\.generate"
    ):
        check_rows(model)


@pytest.mark.filterwarnings("ignore")
def test_torchs_own_dynamic_quantisation_is_refused() -> None:
    quantize: Any = torch.ao.quantization.quantize_dynamic
    model = quantize(copy.deepcopy(make("llama")), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(UnsupportedModelError, match=r"torch\.ao\.nn\.quantized\.dynamic"):
        LLM(model, "none")


@pytest.mark.parametrize("name", ["Linear8bitLt", "FP8Linear", "BitLinear"])
def test_names_do_not_affect_the_check(name: str) -> None:
    """The names of the configuration and class suggest quantised activations; there are
    none.
    """
    model = copy.deepcopy(make("llama", "sdpa"))
    model.model.layers[1].mlp.down_proj.__class__ = type(name, (nn.Linear,), {})
    model.config = copy.deepcopy(model.config)
    model.config.quantization_config = {"quant_method": "fbgemm_fp8", "load_in_8bit": True}
    (out,) = LLM(model, "none", batch_invariant=False).generate([[1, 5, 9]], FEW)
    ids = make("llama").generate(torch.tensor([[1, 5, 9]]), max_new_tokens=3, do_sample=False)
    assert out.token_ids == ids[0, 3:].tolist()
