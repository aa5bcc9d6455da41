"""Find a range of row counts within which a model is batch-invariant, bit for bit.

The number of rows (tokens) in a forward pass can change how the results are rounded. `probe_model`
therefore tests every submodule that maps rows to rows (products, norms, activations), by calling
the submodule as the model does, with row counts from 1 to 1,024. `row_classes` finds the row counts
whose results agree bit for bit. The final result is the widest range of row counts that all
submodules share. Attention uses separate kernels, which are batch-invariant by construction
(`paceline.attention`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from paceline.backend.products import Products
from paceline.core.settings import PREFILL_CHUNK
from paceline.invariance.forward_cost import fixed_rows_cost, forward_cost, padding_cost
from paceline.invariance.probe_report import ProbeReport, ProbeResult
from paceline.invariance.row_classes import (
    RowClass,
    agreeing_runs,
    fold,
    heavy_tailed,
    widest_class,
)
from paceline.invariance.row_module_search import find_row_modules
from paceline.invariance.row_modules import RowModule
from paceline.invariance.settings import (
    CHECK_PREFILL_CHUNK,
    MAX_COST,
    MAX_REPEATED_ROWS,
    MIN_CLASS_ROWS,
    NUM_REPEATS,
    WIDE_COUNTS,
)
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from paceline.model.self_check import check_tree_forward, count_differing_rows
from paceline.util import result_cache
from paceline.util.environment_key import environment_key
from paceline.util.stopwatch import Conditions

_KIND = "rows-v15"  # raise the number when the probes or the report change

# Reports that this process has used. Later engines use the same reports, even if a new measurement
# would be less disturbed.
_used: set[result_cache.ResultKey] = set()


class _ProbeCosts(NamedTuple):
    """Measured costs; see the `ProbeReport` fields of the same names."""

    cost: float = 1.0
    whole_cost: float = 1.0
    usual_seconds: float = 0.0
    conditions: Conditions | None = None


def load_report(model: PreTrainedModel, products: Products = Products()) -> ProbeReport:
    """Return the stored report of `probe_model`; probe the model if there is none.

    If other programs disturbed the time measurements in the stored report, and the machine is
    quieter now, the function probes the model again.

    Args:
        model: Loaded model.
        products: Implementation of the matrix products that the model will use.
    """
    facts = environment_key(
        model, own_products=bool(products.modules), fixed_rows=products.fixed_rows
    )
    key = result_cache.ResultKey(
        _KIND, facts, f"row counts of {model.__class__.__name__}", "proof.json"
    )
    report = result_cache.load_or_compute(
        key, lambda: probe_model(model, products), ProbeReport.read
    )
    if not report.doubtful or key in _used:
        _used.add(key)
        return report
    _used.add(key)
    renewed = probe_model(model, products)
    result_cache.replace(key, renewed)
    return renewed


def probe_model(model: PreTrainedModel, products: Products = Products()) -> ProbeReport:
    """Find the widest range of row counts within which a token's results never change.

    The report also states how much slower forward passes are if their row counts stay within this
    range.

    Args:
        model: Loaded model.
        products: Implementation of the matrix products that the model will use.
    """
    begin = time.perf_counter()
    modules, unknown = find_row_modules(ModelView(model, products).module)
    findings: list[ProbeResult] = []
    for module in modules:
        try:
            findings.append(_probe_module(module))
        except Exception as error:  # a layer of another library may raise any type
            unknown = (
                f"{module.name}, a {type(module.module).__name__}, cannot be tested individually:"
                f" {' '.join(str(error).split())}"
            )
            break
    if unknown:
        return ProbeReport(0, 0, 1.0, unknown, (), time.perf_counter() - begin)
    best = widest_class((finding.runs for finding in findings), WIDE_COUNTS)
    reason = _why_too_narrow(best, findings) or _why_not_invariant(model, best, products)
    costs = _ProbeCosts() if reason else _measure_costs(model, modules, best, products)
    return ProbeReport(
        best.min_rows,
        best.max_rows,
        costs.cost,
        reason,
        tuple(findings),
        seconds=time.perf_counter() - begin,
        own_products=bool(products.modules) and not products.fixed_rows,
        whole_cost=costs.whole_cost,
        usual_seconds=costs.usual_seconds,
        fixed_rows=products.fixed_rows,
        conditions=costs.conditions,
    )


def _probe_module(module: RowModule) -> ProbeResult:
    """Find the row counts at which the results of one kind of module change.

    The function tests a matrix product with folded weights (`fold`). The true result is then zero,
    so the computed result consists only of rounding errors. If the product has a bias, a second
    test uses the original weights and the bias. Modules that are not matrix products are tested
    on many random rows.
    """
    noise = torch.Generator().manual_seed(0)
    counts = module.counts()
    few = tuple(count for count in counts if count <= MAX_REPEATED_ROWS)
    runs: set[int] = set()
    if module.is_product:
        weight, rows = fold(
            module.matrix, heavy_tailed(counts[-1], module.row_shape, module.like, noise), noise
        )
        runs.update(agreeing_runs(module.function(weight), rows, counts))
        plain = [few] if module.has_bias else []
    else:
        plain = [counts, *[few] * NUM_REPEATS]
    for probed in plain:
        rows = heavy_tailed(probed[-1], module.row_shape, module.like, noise)
        runs.update(agreeing_runs(module.function(), rows, probed))
    return ProbeResult(module.name, module.shape, module.times, counts[-1], tuple(sorted(runs)))


def _why_too_narrow(rows: RowClass, findings: Sequence[ProbeResult]) -> str:
    if rows.max_rows >= max(MIN_CLASS_ROWS, 2 * rows.min_rows):
        return ""
    example = max(findings, key=lambda finding: len(finding.runs))
    return (
        "the bits of a result depend on the number of tokens in the forward pass: only"
        f" {rows.min_rows} to {rows.max_rows} tokens give identical bits, which is too few;"
        f" `paceline doctor MODEL` lists the modules that differ, such as {example.name}"
    )


def _why_not_invariant(model: PreTrainedModel, rows: RowClass, products: Products) -> str:
    """Describe how a batch changes the logits of a text; return "" if it does not."""
    chunks = (min(PREFILL_CHUNK, rows.max_rows), CHECK_PREFILL_CHUNK)
    alone, batched = (
        CachedLM(model, chunk, batch_invariant=True, min_rows=rows.min_rows, products=products)
        for chunk in chunks
    )
    # The kernel of another device may be new there, so its values are compared with torch's, too.
    if model.device.type != "cpu":
        check_tree_forward(batched)
    differing, count = count_differing_rows(alone, batched)
    if not differing:
        return ""
    return (
        f"{differing} of {count} rows of logits differ in their bits between a text alone and in a"
        " batch, though no module does by itself; it has attention code of its own, or something"
        " in it sums over rows"
    )


def _measure_costs(
    model: PreTrainedModel, modules: Sequence[RowModule], rows: RowClass, products: Products
) -> _ProbeCosts:
    """Measure how much batch invariance slows down matrix products and forward passes."""
    forward = forward_cost(model, rows.min_rows, products, MAX_COST)
    if not products.fixed_rows and rows.min_rows == 1:
        return _ProbeCosts(1.0, forward.ratio, forward.usual_seconds, forward.conditions)
    product = (
        fixed_rows_cost(modules) if products.fixed_rows else padding_cost(modules, rows.min_rows)
    )
    worst = worst_conditions(forward.conditions, product.conditions)
    return _ProbeCosts(product.ratio, forward.ratio, forward.usual_seconds, worst)


def worst_conditions(*conditions: Conditions | None) -> Conditions | None:
    """Return the conditions of the most disturbed measurement; None if unknown."""
    return max(
        (known for known in conditions if known is not None),
        key=lambda known: (not known.quiet, known.spread),
        default=None,
    )
