"""Decide at load time whether to decode a model batch-invariantly.

In batch-invariant mode, the rest of the batch does not change a single bit of a token's logits. At
load time, `probing` finds a range of row counts that all produce the same bits for a given row on
this machine. Forward passes then stay within this range: paceline pads shorter passes and splits
longer passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from paceline.backend.own_code import own_code_overrides
from paceline.backend.products import Products, plain_products
from paceline.core.settings import BatchInvariant
from paceline.errors import ConfigError
from paceline.invariance.obstacles import dependent_layers, why_no_kernels, why_not_probed
from paceline.invariance.probe_report import ProbeReport
from paceline.invariance.probing import load_report, worst_conditions
from paceline.invariance.settings import (
    FIXED_ROWS,
    FIXED_ROWS_ON_CUDA,
    HOW_TO_ENABLE,
    MAX_COST,
)
from paceline.model.architecture import Architecture
from paceline.util.stopwatch import Conditions

if TYPE_CHECKING:
    from paceline.cpu.product_choice import Trial


@dataclass(frozen=True, slots=True)
class Invariance:
    """States whether a model is decoded batch-invariantly, and why.

    In batch-invariant mode, the logits of a token depend only on the text before it, not on the
    rest of the batch.

    Attributes:
        on: Whether the model is decoded batch-invariantly.
        reason: Explanation of the decision, for messages.
        report: Results of the probes on this machine; None if the model was not probed.
        threads: Number of torch's CPU threads for which the results are valid.
        products: Implementation of the matrix products in forward passes; None means the fastest
            implementation.
    """

    on: bool
    reason: str
    report: ProbeReport | None
    threads: int
    products: Products | None = None

    def check_threads(self) -> None:
        """Check that torch's number of threads has not changed since the probes.

        Kernels divide rows among threads, so the probe results are valid only for the number of
        threads during the probes.

        Raises:
            ConfigError: The number of threads has changed.
        """
        if self.on and torch.get_num_threads() != self.threads:
            raise ConfigError(
                f"\0threads\0: got {torch.get_num_threads()}; expected {self.threads}, the number"
                " at load, for which batch invariance was checked. Set the number before loading,"
                " or pass \0batch_invariant=False\0."
            )

    def model_options(self, prefill_chunk: int) -> dict[str, Any]:
        """Return the `CachedLM` arguments that implement this decision.

        Args:
            prefill_chunk: Maximum prefill chunk, in tokens. Batch invariance may reduce it.
        """
        chunk = prefill_chunk if self.max_rows is None else min(prefill_chunk, self.max_rows)
        return {
            "prefill_chunk": chunk,
            "batch_invariant": self.on,
            "min_rows": self.min_rows,
            "products": self.products,
        }

    @property
    def details(self) -> str:
        """The reason for the decision, followed by the results of the probes."""
        if self.report is None or self.report.reason:
            return self.reason
        return f"{self.reason}; {_findings(self.report)}"

    @property
    def min_rows(self) -> int:
        """Minimum number of rows in a forward pass; passes with fewer rows are padded."""
        return self.report.least if self.on and self.report else 1

    @property
    def max_rows(self) -> int | None:
        """Maximum number of rows in a pass, not counting padding; None means no limit."""
        return self.report.most - self.report.least + 1 if self.on and self.report else None


def resolve_batch_invariance(
    model: PreTrainedModel, setting: BatchInvariant, max_batch: int = 1
) -> Invariance:
    """Check whether a model can be decoded batch-invariantly, and at what cost.

    Args:
        model: Loaded model.
        setting: True, False, or "auto", which enables batch invariance if it costs less than 5 %.
        max_batch: Maximum number of requests in one forward pass.
    Raises:
        UnsupportedModelError: paceline cannot verify drafts losslessly with this model.
        ConfigError: The setting is True, but the model cannot be batch-invariant; or the setting
            is invalid.
    """
    if setting not in (True, False, "auto"):
        raise ConfigError(f"\0batch_invariant\0: got {setting!r}; expected True, False or 'auto'.")
    threads = torch.get_num_threads()
    if setting is False:
        return Invariance(False, "it is switched off", None, threads)
    Architecture.from_model(model)  # raises if the model cannot be decoded at all
    report, products = None, Products()
    obstacle = why_not_probed(model, setting)
    if not obstacle:
        report, products, obstacle = _probe(model, setting, max_batch)
    if obstacle:
        if setting is True:
            raise ConfigError(f"\0batch_invariant\0: got True; {obstacle}. Pass 'auto' or False.")
        return Invariance(False, obstacle, report, threads)
    assert report is not None
    if setting == "auto" and not _is_cheap(report):
        reason = (
            f"forward passes would be up to {_percent(report.highest_cost)} slower, and 'auto'"
            f" allows {_percent(MAX_COST)}; {HOW_TO_ENABLE}"
        )
        return Invariance(False, reason, report, threads)
    return Invariance(True, "the self-test passed on this machine", report, threads, products)


def _percent(cost: float) -> str:
    """Format a relative cost as the percentage by which it exceeds 1."""
    return f"{(cost - 1) * 100:.3g} %"


def _probe(
    model: PreTrainedModel, setting: BatchInvariant, max_batch: int
) -> tuple[ProbeReport | None, Products, str]:
    """Probe the cheapest batch-invariant method, and check whether it can be used.

    Returns:
        The method's report, or None if the probes failed; its implementation of matrix products;
        and the reason why the method cannot be used, or "".
    """
    try:
        report, products = _cheapest(model, setting is True, _fixed_rows(model, max_batch))
    except Exception as error:
        # A module of another library, or a kernel on a new device, may raise any error. An error is
        # better reported here than during an answer.
        reason = " ".join(str(error).split())
        failure = f"it was tried on {model.device} and failed: {reason} ({type(error).__name__})"
        if "CUDA error" in reason:
            failure += ", after which only a new process can use the device"
        return None, Products(), failure
    if not report.reason and report.most - report.least + 1 < max_batch:
        obstacle = (
            f"forward passes over up to {report.most - report.least + 1} tokens give identical"
            f" bits, which is too few for max_batch={max_batch}"
        )
        return report, products, obstacle
    return report, products, report.reason


def _findings(report: ProbeReport) -> str:
    findings = (
        f"forward passes over {report.least} to {report.most} rows give identical"
        f" bits{report.products and f' {report.products}'}; compared with batch invariance off,"
        f" {'an answer takes' if report.own_products else 'matrix products take'}"
        f" {report.cost:.2f}x the time, and a forward pass over one row takes"
        f" {report.whole_cost:.2f}x the time"
    )
    if allowed(report.conditions) > MAX_COST:
        findings += (
            f"; 'auto' allows up to {allowed(report.conditions):.2f}x instead of"
            f" {MAX_COST:.2f}x, because other programs disturbed the timing"
        )
    return findings


def _fixed_rows(model: PreTrainedModel, max_batch: int) -> int:
    if model.device.type != "cuda":
        return FIXED_ROWS
    return next(rows for batch, rows in FIXED_ROWS_ON_CUDA if max_batch <= batch)


def _cheapest(
    model: PreTrainedModel, with_kernels: bool, fixed_rows: int
) -> tuple[ProbeReport, Products]:
    """Return the cheapest batch-invariant matrix products, with their probe report.

    The candidates are torch's matrix products, paceline's kernels, and products with a fixed number
    of rows.
    """
    kernels = _kernel_products(model, with_kernels)
    description = dependent_layers(model)
    if description and kernels is None:
        reason = why_no_kernels(model, description)
        return ProbeReport(0, 0, 1.0, reason, (), seconds=0.0), Products()
    candidates = []
    if kernels is not None:
        kernel_report = _with_trial(load_report(model, kernels[0]), kernels[1])
        if description or _is_cheap(kernel_report):
            return kernel_report, kernels[0]
        candidates = [(kernel_report, kernels[0])]
    own_code = own_code_overrides(model)
    plain = Products(routing=own_code)
    report = load_report(model, plain)
    candidates += [(report, plain)]
    usable = [candidate for candidate in candidates if not candidate[0].reason]
    if usable:
        return min(usable, key=lambda candidate: candidate[0].highest_cost)
    modules = plain_products(model)
    if report.findings and modules:
        fixed = Products(modules, fixed_rows=fixed_rows, routing=own_code)
        fixed_report = load_report(model, fixed)
        if not fixed_report.reason:
            return fixed_report, fixed
    return report, plain


def _kernel_products(model: PreTrainedModel, with_kernels: bool) -> tuple[Products, Trial] | None:
    if model.device.type != "cpu":
        return None
    from paceline.cpu import helper_choice, product_choice  # imports the kernels

    products, is_large = None, product_choice.is_large(model)
    if with_kernels or is_large:
        products = product_choice.everywhere(model)
    if products is None:
        return None
    if is_large:
        products = helper_choice.with_fastest_team(model, products)
    return products, product_choice.trial(model)


def _is_cheap(report: ProbeReport) -> bool:
    return not report.reason and report.highest_cost <= allowed(report.conditions)


def allowed(conditions: Conditions | None) -> float:
    """Return the maximum measured cost at which "auto" enables batch invariance.

    If other programs disturbed the measurement, this function raises the maximum in proportion to
    the spread of the repeated measurements. "auto" therefore disables batch invariance only if the
    cost is certainly too high.

    Args:
        conditions: Conditions of the measurement; None if nothing was measured.
    """
    return (
        MAX_COST if conditions is None or conditions.quiet else MAX_COST * (1 + conditions.spread)
    )


def _with_trial(report: ProbeReport, timing: Trial) -> ProbeReport:
    if report.reason:
        return report
    return replace(
        report,
        cost=timing.answer_cost(report.usual_seconds, report.whole_cost),
        conditions=worst_conditions(report.conditions, timing.conditions),
    )
