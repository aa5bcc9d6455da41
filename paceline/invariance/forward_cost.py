"""Measure the cost of batch invariance in forward passes and matrix products.

The timed calls alternate between batch-invariant and ordinary computation. Other programs can only
slow a call down, so only the fastest repeat of each call counts. The spread of the repeats shows
how reliable the result is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel

from paceline.backend.products import Products
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.timed_target import TimedTarget
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.invariance.row_modules import RowModule
from paceline.invariance.settings import (
    ANSWER_STEPS,
    CONTEXT_TOKENS,
    MAX_ROUNDS,
    MIN_ROUNDS,
    PRODUCT_ROUNDS,
    PROMPT_TOKENS,
)
from paceline.model.cached_lm import CachedLM
from paceline.util.stopwatch import Conditions, Stopwatch, spread_of

# Number of times that a forward pass or an answer makes a call; and the two variants of the call to
# compare.
_Compared = tuple[int, Callable[[], object], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured cost of batch invariance.

    Attributes:
        ratio: Time with batch invariance, divided by the time without it.
        usual_seconds: Time without batch invariance.
        conditions: Conditions of both measurements.
    """

    ratio: float
    usual_seconds: float
    conditions: Conditions


def forward_cost(model: PreTrainedModel, min_rows: int, products: Products, enough: float) -> Cost:
    """Return the cost of a batch-invariant forward pass, relative to an ordinary one.

    Both forward passes process one row, with up to `CONTEXT_TOKENS` cached tokens before it.

    Args:
        model: Loaded model.
        min_rows: Minimum number of rows in batch-invariant forward passes.
        products: Implementation of matrix products in batch-invariant forward passes.
        enough: Cost that is low enough for the caller. The measurement ends early once the measured
            cost does not exceed this value.
    """
    invariant = CachedLM(model, batch_invariant=True, min_rows=min_rows, products=products)
    usual = CachedLM(model)
    context = min(CONTEXT_TOKENS, invariant.context_length - 2)
    requests = [_opened(lm, context) for lm in (invariant, usual)]
    stopwatch = Stopwatch.suited(model.device, partial(run_forward, usual, requests[1], EMPTY_TREE))
    repeats: tuple[list[float], list[float]] = ([], [])
    for round_index in range(MAX_ROUNDS):
        for seconds, lm, request in zip(repeats, (invariant, usual), requests, strict=True):
            seconds.append(stopwatch.seconds(partial(run_forward, lm, request, EMPTY_TREE)))
        if round_index + 1 >= MIN_ROUNDS and min(repeats[0]) <= enough * min(repeats[1]):
            break
    spreads = [spread_of(seconds[1:]) for seconds in repeats]  # the first repeat warms up
    usual_seconds = min(repeats[1])
    return Cost(min(repeats[0]) / usual_seconds, usual_seconds, Conditions.of(spreads, stopwatch))


def padding_cost(modules: Sequence[RowModule], min_rows: int) -> Cost:
    """Return the cost of padding all products of a forward pass to `min_rows` rows.

    Args:
        modules: Modules of the model.
        min_rows: Number of rows after padding. The cost is relative to products of one row.
    """
    compared: list[_Compared] = [
        (module.times, module.original.caller(min_rows), module.original.caller(1))
        for module in modules
        if module.is_product
    ]
    return _product_cost(compared, modules[0].like.device)


def fixed_rows_cost(modules: Sequence[RowModule]) -> Cost:
    """Return the cost of matrix products that always have the same number of rows.

    The cost is the time of these products, divided by the time of ordinary products. Both times
    cover all products that one answer requires: those of the prefill, and those of the decoding
    steps.

    Args:
        modules: Modules of a `ModelView` whose products have a fixed number of rows.
    """

    compared: list[_Compared] = []
    for module in modules:
        if module.is_product:
            for times, count in ((1, PROMPT_TOKENS), (ANSWER_STEPS, 1)):
                calls = module.caller(count), module.original.caller(count)
                compared.append((module.times * times, *calls))
    return _product_cost(compared, modules[0].like.device)


def _product_cost(compared: list[_Compared], device: torch.device) -> Cost:
    spreads, totals = [0.0], [0.0, 0.0]
    stopwatch = Stopwatch(device)
    for times, *calls in compared:
        rounds = [[stopwatch.seconds(call) for call in calls] for _ in range(PRODUCT_ROUNDS)]
        for index, repeats in enumerate(zip(*rounds, strict=True)):
            totals[index] += times * min(repeats)
            spreads.append(spread_of(repeats[1:]))
    ratio = totals[0] / totals[1] if totals[1] else 1.0
    return Cost(ratio, totals[1], Conditions.of(spreads, stopwatch))


def run_forward(lm: TimedTarget, request: Request, tree: DraftTree) -> None:
    """Run one forward pass without a commit, and wait until the device has finished.

    Args:
        lm: Model to run.
        request: Request with one pending token.
        tree: Draft tree of the request.
    """
    lm.forward([request], [tree])[0, -1, 0].item()


def _opened(lm: CachedLM, context: int) -> Request:
    """Open a request, and mark `context` of its tokens as cached.

    The request has one more token, which is pending. The cache contains zeros for the cached
    tokens; reading zeros takes as long as reading other values.
    """
    request = Request([0] * (context + 1), SamplingParams())
    lm.reserve(1, context + 1)
    lm.open(request)
    request.cached = context
    return request
