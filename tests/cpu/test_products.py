"""Check matrix products: results, bits of rows, and when models use them."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.backend.products import Products
from paceline.backend.products import replaceable as replaceable_by
from paceline.backend.settings import MAX_ROWS, TIMED_ROWS
from paceline.core.settings import BatchInvariant
from paceline.cpu import backend, product_choice
from paceline.cpu.backend import CPU
from paceline.cpu.linear.dispatch import product
from paceline.cpu.product_choice import Trial, everywhere, fastest, trial
from paceline.invariance import invariance, probing
from paceline.invariance.forward_cost import Cost
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.invariance.probe_report import ProbeReport
from paceline.invariance.probing import probe_model
from paceline.invariance.settings import MAX_COST
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from paceline.model.self_check import count_differing_rows
from paceline.util import stopwatch
from paceline.util.stopwatch import Conditions
from tests.support.models import make
from tests.support.shared import Pair

QUIET = Conditions(0.0, 0.0, 0.0, 0.0)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MOST = 70


def replaceable(model: Any) -> tuple[torch.nn.Linear, ...]:
    return replaceable_by(model, CPU)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return random numbers with heavy tails, so that another order of sums shows."""
    noise = torch.Generator().manual_seed(seed)
    return (
        torch.randn(shape, generator=noise) * torch.randn(1, shape[-1], generator=noise).exp()
    ).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outer", "inner"), [(8, 8), (72, 24), (200, 136), (64, 1544)])
@pytest.mark.parametrize("biased", [False, True])
def test_results_are_right_and_depend_on_their_row_only(
    dtype: torch.dtype, outer: int, inner: int, biased: bool
) -> None:
    rows, weight = (
        numbers(MOST, inner, dtype=dtype),
        numbers(outer, inner, dtype=dtype, seed=1) / inner**0.5,
    )
    bias = numbers(outer, dtype=dtype, seed=2) if biased else None
    together = product(rows, weight, bias)
    exact = rows.double() @ weight.double().T + (0 if bias is None else bias.double())
    allowed = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 1e-3}[dtype]
    assert together.dtype == dtype
    assert float((together.double() - exact).abs().max() / exact.abs().max()) < allowed
    for count in (1, 2, 3, 4, 5, 7, 12, 13, 33, MOST):
        for first in {0, MOST - count}:
            assert torch.equal(
                product(rows[first : first + count], weight, bias), together[first : first + count]
            )


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    values = torch.cat(
        [
            torch.randn(2000) * 10.0 ** torch.randint(-30, 30, (2000,)),
            torch.tensor([0.0, -0.0, 1e39, -1e39] * 2),
        ]
    )
    rows = torch.zeros(len(values), 8, dtype=torch.bfloat16)
    rows[:, 0] = 1
    result = product(rows[:1], torch.zeros(len(values), 8, dtype=torch.bfloat16), values)
    assert torch.equal(
        result[0].view(torch.int16), (values + 0.0).to(torch.bfloat16).view(torch.int16)
    )
    assert (
        product(rows[:1], torch.full((8, 8), float("nan"), dtype=torch.bfloat16), None)
        .isnan()
        .all()
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_thousands_of_rows(dtype: torch.dtype) -> None:
    """Allocate so much memory that the system reclaims freed memory at once."""
    rows, weight = numbers(3000, 1024, dtype=dtype), numbers(64, 1024, dtype=dtype, seed=1) / 32
    together = product(rows, weight, None)
    assert torch.equal(product(rows[1500:1503], weight, None), together[1500:1503])
    exact = rows[-9:].double() @ weight.double().T
    assert float((together[-9:].double() - exact).abs().max() / exact.abs().max()) < 5e-3


def test_threads_share_the_outputs() -> None:
    rows, weight = (
        numbers(40, 256, dtype=torch.float32),
        numbers(4096, 256, dtype=torch.float32, seed=1),
    )
    alone = product(rows, weight, None)
    torch.set_num_threads(2)
    try:
        assert torch.equal(product(rows, weight, None), alone)
    finally:
        torch.set_num_threads(1)


def test_shapes_are_kept() -> None:
    weight = numbers(16, 24, dtype=torch.float32)
    assert product(numbers(2, 3, 24, dtype=torch.float32), weight, None).shape == (2, 3, 16)
    assert product(numbers(2, 3, 48, dtype=torch.float32)[..., ::2], weight, None).shape == (
        2,
        3,
        16,
    )


def test_other_forwards_of_the_model_keep_torchs_products() -> None:
    model = make("llama")
    products = Products(replaceable(model), backend=CPU)
    assert products.modules
    calls: list[str] = []
    real_product = product

    def watched(*args: Any) -> Any:
        calls.append(threading.current_thread().name)
        return real_product(*args)

    ids, viewed = torch.tensor([[3, 4, 5]]), ModelView(model, products).module

    def in_the_middle() -> None:
        other = threading.Thread(target=lambda: model(ids), name="other")
        other.start()
        other.join()
        model(ids)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(backend, "product", watched)
        expected = model(ids).logits
        assert not calls
        assert replaceable(model) == products.modules
        whole_forward = viewed.model.layers[1].forward

        def forward(*args: Any, **named: Any) -> Any:
            in_the_middle()
            return whole_forward(*args, **named)

        patch.setitem(vars(viewed.model.layers[1]), "forward", forward)
        result = viewed(ids).logits
        assert len(calls) == len(products.modules)
        model(ids)
    assert len(calls) == len(products.modules)
    assert torch.allclose(result, expected, atol=1e-5)
    assert not any("forward" in vars(module) for module in products.modules)


def test_rows_out_of_range_and_gradients_use_torchs_product() -> None:
    model = make("llama")
    modules = replaceable(model)
    weight = modules[0].weight
    few, many = (numbers(count, weight.shape[1], dtype=torch.float32) for count in (2, 5))
    override: Any = Products(modules, 1, 4, backend=CPU).override(modules[0])
    with torch.inference_mode():
        assert torch.equal(override(few), product(few, weight, None))
        assert torch.equal(override(many), torch.nn.functional.linear(many, weight))
    assert override(few).requires_grad == weight.requires_grad


def test_a_module_with_a_replaced_forward_is_left_alone() -> None:
    model = make("llama")
    products, first = Products(replaceable(model), backend=CPU), replaceable(model)[0]
    vars(first)["forward"] = lambda rows: rows
    try:
        assert first not in replaceable(model)
        assert products.override(first) is None
    finally:
        del vars(first)["forward"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_products_have_one_class_of_row_counts(dtype: torch.dtype) -> None:
    """Activations may still have several classes of row counts; padding avoids them."""
    model = copy.deepcopy(make("llama", "sdpa")).to(dtype)
    products = Products(replaceable(model), backend=CPU)
    proof = probe_model(model, products)
    assert (proof.reason, proof.own_products) == ("", True)
    own_names = {name for name, module in model.named_modules() if module in products.modules}
    assert {result.runs for result in proof.findings if result.name in own_names} == {(1,)}
    alone, other = (
        CachedLM(model, chunk, batch_invariant=True, min_rows=proof.least, products=products)
        for chunk in (512, 8)
    )
    assert count_differing_rows(alone, other) == (0, 6)


@pytest.mark.parametrize(
    ("seconds", "torchs", "rows"),
    [
        ((1, 1, 1, 1, 1), (2, 2, 2, 2, 2), (1, MAX_ROWS)),
        ((1, 1, 1, 3, 1), (2, 2, 2, 2, 2), (1, TIMED_ROWS[2])),
        ((3, 1, 1, 1, 1), (2, 2, 2, 2, 2), (TIMED_ROWS[1], MAX_ROWS)),
        ((3, 3, 3, 3, 3), (2, 2, 2, 2, 2), (0, 0)),
        ((2.02, 1, 3, 1, 1), (2, 2, 2, 2, 2), (1, TIMED_ROWS[1])),
        ((), (), (0, 0)),
    ],
)
def test_the_range_of_rows_that_uses_our_products(
    seconds: tuple[float, ...], torchs: tuple[float, ...], rows: tuple[int, int]
) -> None:
    assert Trial(seconds, torchs).range == rows


def test_small_models_keep_torchs_products() -> None:
    assert fastest(make("llama")) == Products()


def test_small_models_use_our_products_if_faster(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, tmp_path: Path
) -> None:
    """Only batch invariance starts this measurement, because it takes time."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(product_choice, "trial", lambda model: Trial((1.0,) * 5, (1.0,) * 5))
    monkeypatch.setattr(probing, "forward_cost", lambda *requested: Cost(1.0, 1.0, QUIET))
    result = resolve_batch_invariance(pair.target, True)
    assert result.report is not None
    assert result.report.own_products
    proof = resolve_batch_invariance(pair.target, "auto").report
    assert proof is not None
    assert not proof.own_products


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Treat tiny models as large, with an empty cache."""
    monkeypatch.setattr(product_choice, "MIN_TIMED_WEIGHTS", 1)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))


@pytest.mark.usefixtures("worth")
def test_trials_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    result = trial(model)
    assert len(result.ours) == len(result.torchs) == len(TIMED_ROWS)
    assert min(result.ours + result.torchs) > 0
    monkeypatch.setattr(Conditions, "calmer_now", False)
    monkeypatch.setattr(product_choice, "_try", None)
    assert trial(model) == result


@pytest.mark.usefixtures("worth")
def test_disturbed_trial_is_repeated_on_a_quiet_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the repetition, the disturbed result is used."""
    model, trials = make("llama"), list[Trial]()

    def tried(*modules: Any) -> Trial:
        waited = 0.0 if len(trials) == 2 else 0.4
        trials.append(
            Trial(
                (1.0,) * len(TIMED_ROWS),
                (2.0,) * len(TIMED_ROWS),
                Conditions(0.0, waited, 3.0, 0.0),
            )
        )
        return trials[-1]

    monkeypatch.setattr(product_choice, "_try", tried)
    for load, count in ((3.0, 1), (2.8, 1), (1.0, 2), (1.0, 3), (1.0, 3)):
        monkeypatch.setattr(stopwatch, "load_average", lambda load=load: load)
        assert trial(model) == trials[-1]
        assert len(trials) == count
    assert trial(model).conditions == Conditions(0.0, 0.0, 3.0, 0.0)


@pytest.mark.usefixtures("worth")
def test_batch_invariance_by_our_products(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setattr(product_choice, "trial", lambda model: Trial((1.0,) * 5, (2.0,) * 5))
    monkeypatch.setattr(probing, "forward_cost", lambda *requested: Cost(1.0, 1.0, QUIET))
    result = resolve_batch_invariance(pair.target, "auto")
    assert result.on, result.reason
    assert (
        "with paceline's matrix products; compared with batch invariance off, an answer takes"
        in (result.details)
    )
    assert result.min_rows == 1
    assert result.products == everywhere(pair.target)
    llm = LLM(pair.target, "prompt_lookup", batch_invariant=True)
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=40))
    assert [out.token_ids for out in outs] == pair.answers


@pytest.mark.usefixtures("worth")
@pytest.mark.parametrize("setting", [True, "auto"])
def test_the_whole_forward_pass_decides_about_our_products(
    setting: BatchInvariant, monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    """Slow prompts hardly count if our products make each step cheaper."""
    times = Trial((0.01, 0.02, 0.03, 0.1, 0.3), (0.07, 0.07, 0.08, 0.08, 0.2))
    monkeypatch.setattr(product_choice, "trial", lambda model: times)

    def report(model: object, products: Products = Products()) -> ProbeReport:
        ours = bool(products.modules)
        whole_cost = 0.5 if ours else 3.0
        return ProbeReport(1, MAX_ROWS, 1.0, "", (), 0.1, ours, whole_cost, usual_seconds=0.02)

    monkeypatch.setattr(invariance, "load_report", report)
    result = resolve_batch_invariance(pair.target, setting)
    assert result.on, result.reason
    assert result.products == everywhere(pair.target)
    assert result.report is not None
    assert result.report.cost < 1


@pytest.mark.usefixtures("worth")
def test_slow_products_are_used_if_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    monkeypatch.setattr(product_choice, "trial", lambda model: Trial((100.0,) * 5, (1.0,) * 5))
    assert Trial((2.0,) * 5, (1.0,) * 5).answer_cost(1.0, 2.0) > MAX_COST
    result = resolve_batch_invariance(pair.target, True)
    assert result.report is not None
    assert result.report.own_products == (result.report.cost > 90)
