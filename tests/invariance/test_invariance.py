"""Test the proof of batch invariance at load, and the reasons for refusals."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline import LLM, SamplingParams
from paceline.backend.products import Products
from paceline.errors import ConfigError
from paceline.invariance import invariance, probing
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.invariance.probe_report import ProbeReport, ProbeResult
from paceline.invariance.probing import load_report, probe_model
from paceline.invariance.settings import MAX_ROWS
from paceline.util import stopwatch
from paceline.util.stopwatch import Conditions
from tests.support.models import make

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("own_cache")]
CHEAP = ProbeReport(4, MAX_ROWS, 1.02, "", (), 0.1)


class Changing(nn.Linear):
    """Product that sums in another order from `change` rows on."""

    change = 5

    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, input.shape[-1])
        pieces = 2 if len(rows) >= self.change else 4
        parts = zip(
            rows.float().chunk(pieces, 1), self.weight.float().chunk(pieces, 1), strict=True
        )
        total = torch.stack([(part[:, None] * weight).sum(-1) for part, weight in parts]).sum(0)
        return total.to(input.dtype).reshape(*input.shape[:-1], -1)


def with_products(kind: type[nn.Linear], dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return the tiny Llama with one kind of product replaced."""
    model = copy.deepcopy(make("llama", "sdpa")).to(dtype)
    for layer in model.model.layers:
        layer.mlp.down_proj.__class__ = kind
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "phi3", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_product_of_a_model_is_tried(name: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(make(name)).to(dtype)
    proof = probe_model(model)
    assert (proof.reason, proof.most) == ("", MAX_ROWS)
    products = [one for one in proof.findings if "->" in one.shape]
    assert sum(one.times for one in products) == sum(
        isinstance(one, nn.Linear) or type(one).__name__ == "Conv1D" for one in model.modules()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_that_changes_is_found_in_the_model(dtype: torch.dtype) -> None:
    proof = probe_model(with_products(Changing, dtype))
    (changing,) = [one for one in proof.findings if one.name.endswith("down_proj")]
    assert 5 in changing.runs
    assert proof.least >= 5
    assert proof.cost > 0


def test_refusal_reports_the_row_classes() -> None:
    class Always(Changing):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * (1 + input[..., :1].numel() * 2**-7)

    model = with_products(Always)
    with pytest.raises(
        ConfigError, match=r"batch_invariant: got True; the bits of a result .*down_proj"
    ):
        resolve_batch_invariance(model, True)
    found = resolve_batch_invariance(model, "auto")
    assert not found.on
    assert "such as model.layers.0.mlp.down_proj" in found.reason
    assert found.details == found.reason
    assert found.min_rows == 1


class Anything:
    """Replaces `nn.Linear.forward` by a product that rounds differently for every row count."""

    @staticmethod
    def forward(module: nn.Linear, input: Tensor) -> Tensor:
        result = nn.functional.linear(input, module.weight, module.bias)
        return result * (1 + result.numel() // result.shape[-1] * 2**-7)


def test_products_get_a_fixed_row_count_without_a_wide_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nn.Linear, "forward", Anything.forward)
    model = make("llama", "sdpa")
    assert "only 1 to 1 tokens give identical bits" in probe_model(model).reason
    found = resolve_batch_invariance(model, True)
    assert found.on
    assert found.min_rows == 1
    assert found.products is not None
    assert found.report is not None
    assert found.products.fixed_rows == found.report.fixed_rows == 64
    assert found.reason == "the self-test passed on this machine"
    assert (
        "forward passes over 1 to 1024 rows give identical bits with matrix products padded to 64"
        " rows; compared with batch invariance off, matrix products take" in found.details
    )
    llm = LLM(model, "prompt_lookup", max_batch=3, batch_invariant=True)
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 3] * 6, [4]]
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    alone = LLM(model, "none", max_batch=1, batch_invariant=True)
    texts = [alone.generate([prompt], params)[0].token_ids for prompt in prompts]
    assert [out.token_ids for out in llm.generate(prompts, params)] == texts
    assert "forward" not in vars(model.lm_head)  # nothing is left behind


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_products_of_a_fixed_number_of_rows(rows: int) -> None:
    module, seen = nn.Linear(24, 40), []
    states, plain = torch.randn(1, rows, 24), nn.Linear.forward

    def watched(one: nn.Linear, some: Tensor) -> Tensor:
        seen.append(len(some))
        return plain(one, some)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(nn.Linear, "forward", watched)
        override: Any = Products((module,), fixed_rows=64).override(module)
        out = override(states)
    assert set(seen) == {64}
    assert len(seen) == -(-rows // 64)
    assert out.shape == (1, rows, 40)
    assert torch.allclose(out, plain(module, states), atol=1e-5)


def test_device_failures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ProbeReport:
        raise MemoryError("out of shared memory")

    model = make("llama", "sdpa")
    monkeypatch.setattr(invariance, "load_report", fail)
    found = resolve_batch_invariance(model, "auto")
    assert (found.on, found.report) == (False, None)
    assert found.reason == "it was tried on cpu and failed: out of shared memory (MemoryError)"
    monkeypatch.setattr(type(model), "device", torch.device("cuda:0"))
    with pytest.raises(ConfigError, match="got True; it was tried on cuda:0 and failed"):
        resolve_batch_invariance(model, True)


def test_a_fault_of_a_kernel_ends_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ProbeReport:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with")

    model = make("llama", "sdpa")
    monkeypatch.setattr(invariance, "load_report", fail)
    monkeypatch.setattr(type(model), "device", torch.device("cuda:0"))
    with pytest.raises(ConfigError) as raised:
        resolve_batch_invariance(model, True)
    assert str(raised.value) == (
        "batch_invariant: got True; it was tried on cuda:0 and failed: CUDA error: an illegal"
        " memory access was encountered Compile with (RuntimeError), after which only a new"
        " process can use the device. Pass 'auto' or False."
    )


def test_an_activation_whose_last_elements_differ_is_found() -> None:
    class Tail(nn.Module):
        def forward(self, input: Tensor) -> Tensor:
            result = nn.functional.silu(input)
            result.view(-1)[-1] += 1.0
            return result

    model = copy.deepcopy(make("llama", "sdpa"))
    for layer in model.model.layers:
        layer.mlp.act_fn = Tail()
    assert "mlp.act_fn" in probe_model(model).reason


def test_weights_that_cannot_be_tried_are_refused_by_name() -> None:
    class Bare(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.mix = inner, nn.Parameter(torch.eye(64))

        def forward(self, hidden: Tensor) -> Tensor:
            return self.inner(hidden) @ self.mix  # type: ignore[no-any-return]

    model = copy.deepcopy(make("llama", "sdpa"))
    model.model.layers[1].mlp = Bare(model.model.layers[1].mlp)
    with pytest.raises(
        ConfigError,
        match=r"layers\.1\.mlp\.mix belongs to a Bare, whose sums cannot be tested individually",
    ):
        resolve_batch_invariance(model, True)


def test_layers_that_cannot_be_tried_are_refused_by_name() -> None:
    class Fixed(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if input.shape[1] != 13:
                raise RuntimeError("packed for 13 rows")
            return super().forward(input)

    with pytest.raises(
        ConfigError,
        match=r"mlp\.down_proj, a Fixed, cannot be tested individually: packed for 13 rows",
    ):
        resolve_batch_invariance(with_products(Fixed), True)


def test_explicit_request_that_cannot_be_met() -> None:
    with pytest.raises(ConfigError, match="got True; it has its own attention code"):
        resolve_batch_invariance(make("bloom"), True)
    assert resolve_batch_invariance(make("bloom"), "auto").reason.startswith(
        "it has its own attention code"
    )
    with pytest.raises(
        ConfigError, match="batch_invariant: got 'yes'; expected True, False or 'auto'"
    ):
        resolve_batch_invariance(make("llama"), "yes")  # type: ignore[arg-type]


def test_auto_is_on_where_it_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama", "sdpa")
    monkeypatch.setattr(invariance, "load_report", lambda *_: CHEAP)
    assert resolve_batch_invariance(model, "auto").on
    assert resolve_batch_invariance(model, "auto").min_rows == 4
    for dear in (
        ProbeReport(4, MAX_ROWS, 1.9, "", (), 0.1),
        ProbeReport(4, MAX_ROWS, 1.0, "", (), 0.1, whole_cost=1.2),
    ):
        monkeypatch.setattr(invariance, "load_report", lambda *_, dear=dear: dear)
        refused = resolve_batch_invariance(model, "auto")
        assert (refused.on, refused.min_rows, refused.max_rows) == (False, 1, None)
        slower = "90 %" if dear.cost == 1.9 else "20 %"
        assert refused.reason == (
            f"forward passes would be up to {slower} slower, and 'auto' allows 5 %;"
            " --batch-invariant on (in Python, batch_invariant=True) enables it"
        )
        assert f"matrix products take {dear.cost:.2f}x the time, and" in refused.details
        assert f"one row takes {dear.whole_cost:.2f}x the time" in refused.details
    assert resolve_batch_invariance(model, True).on
    assert not resolve_batch_invariance(model, False).on


def test_a_disturbed_clock_does_not_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured cost must exceed the limit by more than the spread of its repeats."""
    model = make("llama", "sdpa")
    for spread, cost, on in (
        (0.02, 1.2, False),
        (0.4, 1.2, True),
        (0.4, 1.45, True),
        (0.4, 1.5, False),
    ):
        conditions = Conditions(spread, None, 3.0, 0.0)
        for proof in (
            replace(CHEAP, cost=cost, conditions=conditions),
            replace(CHEAP, whole_cost=cost, conditions=conditions),
        ):
            monkeypatch.setattr(invariance, "load_report", lambda *_, proof=proof: proof)
            found = resolve_batch_invariance(model, "auto")
            assert found.on is on
            assert ("'auto' allows up to 1.47x instead of 1.05x" in found.details) is (
                spread == 0.4
            )


def test_disturbed_costs_are_measured_again_on_a_quiet_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second engine of the same process keeps the bits of the first engine."""
    model, searched = make("llama", "sdpa"), list[ProbeReport]()

    def found(*_: object) -> ProbeReport:
        searched.append(
            replace(CHEAP, cost=1.0 + len(searched), conditions=Conditions(0.4, None, 3.0, 0.0))
        )
        return searched[-1]

    monkeypatch.setattr(probing, "probe_model", found)
    for load, count in ((3.0, 1), (1.0, 1)):
        monkeypatch.setattr(stopwatch, "load_average", lambda load=load: load)
        assert load_report(model) == searched[-1]
        assert len(searched) == count
    monkeypatch.setattr(probing, "_used", set())  # another process
    assert load_report(model) == searched[-1]
    assert len(searched) == 2
    assert load_report(model) == searched[-1]


def test_proof_runs_once_per_machine_and_shapes(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    model, searched = make("llama", "sdpa"), []
    honest = probing.probe_model
    monkeypatch.setattr(probing, "probe_model", lambda *asked: searched.append(1) or honest(*asked))  # type: ignore[func-returns-value]
    first = load_report(model)
    assert load_report(model) == first
    assert len(searched) == 1
    load_report(make("qwen2", "sdpa"))
    assert len(searched) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    load_report(model)
    assert len(searched) == 3
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    load_report(model)
    assert len(searched) == 4
    own_cache.joinpath("file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(own_cache / "file"))  # no folder: nothing can be kept
    assert load_report(model).findings == first.findings
    assert len(searched) == 5


def test_findings_survive_the_cache() -> None:
    model = make("gpt2")
    found = load_report(model)
    assert isinstance(found.findings[0], ProbeResult)
    assert load_report(model) == found


def test_changed_thread_count_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariance, "load_report", lambda *_: CHEAP)
    llm = LLM(make("llama", "sdpa"), batch_invariant=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with pytest.raises(ConfigError, match="threads: got 3; expected 1, the number at load"):
        llm.generate([[3, 4]])


def test_off_is_off() -> None:
    llm = LLM(make("llama", "sdpa"), batch_invariant=False)
    assert not llm.invariance.on
    assert not llm.generate([[3, 4, 5]], SamplingParams(max_new_tokens=2))[0].stats.batch_invariant
