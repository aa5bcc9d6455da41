"""What batch invariance costs: forwards and products with it and without it, timed in turns.

Other programs only ever make a call slower, so the shortest repeat counts. How far the repeats are
apart says how much the result can be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel

from paceline.backend.products import Products
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.invariance.row_modules import RowModule
from paceline.model.cached_lm import CachedLM
from paceline.util.stopwatch import Conditions, Stopwatch, spread_of

CONTEXT = 512  # tokens of the text, where the model takes so many
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 16
_PRODUCT_ROUNDS = 4

_ANSWER = (64, 256)  # steps, and tokens of the prompt

_Compared = tuple[int, Callable[[], object], Callable[[], object]]  # how often both calls are made


@dataclass(frozen=True, slots=True)
class Cost:
    """A time relative to the usual one, and the conditions under which both were measured."""

    ratio: float
    conditions: Conditions


def forward_cost(model: PreTrainedModel, min_rows: int, products: Products, enough: float) -> Cost:
    """Return the time of a batch-invariant forward over that of the usual one: products, attention
    and all else.

    A forward feeds one row behind a text.

    Args:
        min_rows, products: of the batch-invariant forwards.
        enough: no more rounds are made once the cost is found to be no higher: another program can
            only make a forward slower.
    """
    invariant = CachedLM(model, batch_invariant=True, min_rows=min_rows, products=products)
    usual = CachedLM(model)
    context = min(CONTEXT, invariant.context_length - 2)
    requests = [_opened(lm, context) for lm in (invariant, usual)]
    stopwatch = Stopwatch.suited(model.device, partial(run_forward, usual, requests[1], EMPTY_TREE))
    repeats: tuple[list[float], list[float]] = ([], [])
    for turn in range(_MOST_ROUNDS):
        for kept, lm, request in zip(repeats, (invariant, usual), requests, strict=True):
            kept.append(stopwatch.seconds(partial(run_forward, lm, request, EMPTY_TREE)))
        if turn + 1 >= _LEAST_ROUNDS and min(repeats[0]) <= enough * min(repeats[1]):
            break
    spreads = [spread_of(one[1:]) for one in repeats]  # the first of each warms up
    return Cost(min(repeats[0]) / min(repeats[1]), Conditions.of(spreads, stopwatch))


def padding_cost(modules: Sequence[RowModule], least: int) -> Cost:
    """Return the time of all products of a forward with `least` rows, over that with one."""
    compared: list[_Compared] = [
        (one.times, one.original.caller(least), one.original.caller(1))
        for one in modules
        if one.is_product
    ]
    return _product_cost(compared, modules[0].like.device)


def pieces_cost(modules: Sequence[RowModule]) -> Cost:
    """Return the time of all products of an answer in pieces of a fixed number of rows, over that
    without.

    The answer has a prompt of 256 tokens and 64 steps.

    Args:
        modules: Modules of a view whose products have a fixed number of rows.
    """

    compared: list[_Compared] = []
    for one in modules:
        if one.is_product:
            for times, count in zip((1, _ANSWER[0]), (_ANSWER[1], 1), strict=True):
                calls = one.caller(count), one.original.caller(count)
                compared.append((one.times * times, *calls))
    return _product_cost(compared, modules[0].like.device)


def _product_cost(compared: list[_Compared], device: torch.device) -> Cost:
    spreads, totals = [0.0], [0.0, 0.0]
    stopwatch = Stopwatch(device)
    for times, *calls in compared:
        rounds = [[stopwatch.seconds(call) for call in calls] for _ in range(_PRODUCT_ROUNDS)]
        for place, repeats in enumerate(zip(*rounds, strict=True)):
            totals[place] += times * min(repeats)
            spreads.append(spread_of(repeats[1:]))
    return Cost(totals[0] / totals[1] if totals[1] else 1.0, Conditions.of(spreads, stopwatch))


def run_forward(lm: CachedLM, request: Request, tree: DraftTree) -> None:
    """Make one forward of a sequence and its tree, of which nothing is committed, and wait for
    an accelerator.
    """
    lm.forward([request], [tree])[0, -1, 0].item()


def _opened(lm: CachedLM, context: int) -> Request:
    """Return a sequence that counts as cached but for its newest token: the cache holds zeros,
    which take as long to read.
    """
    request = Request([0] * (context + 1), SamplingParams())
    lm.reserve(1, context + 1)
    lm.open(request)
    request.cached = context
    return request
