"""Whose products are faster, by the number of rows: tried on the model's own weights, once on a
machine, and kept.

A trial that other programs disturbed is used, and repeated at a later load, once the machine has
less to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.cpu.linear.own import ANY, Products, product, replaceable
from paceline.cpu.thread_team import TEAM
from paceline.util import result_cache
from paceline.util.environment_key import environment_key
from paceline.util.stopwatch import Conditions, Stopwatch, spread_of

COUNTS = (1, 4, 16, 64, 256)  # of rows that are tried; the last stands for any more
_KIND = "products-v8"  # another number when what is tried or written changes
# weights: a smaller model stays in the processor's caches, and torch's kernels do as well there
_WORTH = 1 << 25
# weights of a shape that are tried one after the other: fewer would stay in a cache
_BEYOND = 1 << 27
# weights of a module that is not tried with so many rows: heads of a vocabulary get few
_NARROW, _MANY = (1 << 24, 64)
# the least time counts; with many rows a single product is tried, which is soon disturbed
_ROUNDS, _MANY_ROUNDS = (3, 8)
_TIE = 1.03  # of torch's time: as fast, for a clock that wanders
_STEPS = 64
_PRODUCTS: tuple[Callable[..., Any], ...] = (product, torch.nn.functional.linear)


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds of all products of a model with each of `COUNTS` rows, ours and torch's; empty where
    none can be ours.

    Attributes:
        conditions: under which they were timed; None where nothing was.
    """

    ours: tuple[float, ...] = ()
    torchs: tuple[float, ...] = ()
    conditions: Conditions | None = None

    @property
    def doubtful(self) -> bool:
        """Whether other programs disturbed it, and fewer would now."""
        return (
            self.conditions is not None and not self.conditions.quiet and self.conditions.calmer_now
        )

    @property
    def range(self) -> tuple[int, int]:
        """Least and most rows with which ours are faster, or as fast; (0, 0) if none."""
        wins = [mine < _TIE * theirs for mine, theirs in zip(self.ours, self.torchs, strict=True)]
        if True not in wins:
            return 0, 0
        first = wins.index(True)
        last = first + [*wins[first:], False].index(False) - 1
        return COUNTS[first], ANY if last == len(wins) - 1 else COUNTS[last]

    @property
    def cost_everywhere(self) -> float:
        """Time of an answer's products with ours throughout, over the least it could be.

        The answer is 64 steps behind a prompt of 256 tokens; they feed one row, 4 or 16, whichever
        is worst for ours.
        """
        best = [min(pair) for pair in zip(self.ours, self.torchs, strict=True)]
        return max(
            (self.ours[-1] + _STEPS * self.ours[few]) / (best[-1] + _STEPS * best[few])
            for few in range(3)
        )


def fastest(model: PreTrainedModel) -> Products:
    """Return the products with which forwards of a model take the least time."""
    least, most = trial(model).range if is_large(model) else (0, 0)
    return Products.ours(model, least, most) if most else Products()


def everywhere(model: PreTrainedModel) -> Products | None:
    """Return our products for any number of rows; None where some products of a model cannot be
    ours.
    """
    ours = Products.ours(model)
    weights = {id(one.weight) for one in ours.modules}
    others = [one for one in model.parameters() if one.dim() > 1 and id(one) not in weights]
    embeddings = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    complete = all(id(one) in embeddings for one in others)
    return ours if ours.modules and complete else None


def trial(model: PreTrainedModel) -> Trial:
    """Return the times of both; found before on this machine in the same circumstances, or tried
    now.
    """
    modules = replaceable(model)
    if not modules:
        return Trial()
    place = result_cache.ResultKey(
        _KIND, environment_key(model), f"product times of {model.__class__.__name__}", "trial.json"
    )
    kept = result_cache.load_or_compute(place, lambda: _try(modules), _read)
    if not kept.doubtful:
        return kept
    again = _try(modules)
    result_cache.replace(place, again)
    return again


def _read(kept: dict[str, Any]) -> Trial:
    return Trial(tuple(kept["ours"]), tuple(kept["torchs"]), Conditions.read(kept["conditions"]))


def is_large(model: PreTrainedModel) -> bool:
    """Whether our products may be faster than torch's for some numbers of rows: then it is worth
    trying.
    """
    return sum(one.weight.numel() for one in replaceable(model)) >= _WORTH


@torch.inference_mode()
def _try(modules: tuple[nn.Linear, ...]) -> Trial:
    shapes: dict[tuple[int, int], list[nn.Linear]] = {}
    for one in modules:
        shapes.setdefault((one.in_features, one.out_features), []).append(one)
    times: list[list[float]] = [[], []]
    spreads: list[float] = []
    products, first = Products(modules), modules[0]
    one_row = torch.ones(1, first.in_features, dtype=first.weight.dtype)
    stopwatch = Stopwatch.suited(first.weight.device, lambda: first(one_row))
    for count in COUNTS:
        tried = tuple(zip(_PRODUCTS, (products.helpers(count), 0), strict=True))
        totals = [0.0, 0.0]
        for (inner, outer), alike in shapes.items():
            if count >= _MANY and inner * outer >= _NARROW:
                continue
            rows = torch.ones(count, inner, dtype=alike[0].weight.dtype)
            some = alike[: -(-_BEYOND // (inner * outer)) if count < _MANY else 1]
            rounds = range(_ROUNDS if count < _MANY else _MANY_ROUNDS)
            # By turns: both in any weather.
            taken = [
                [
                    _seconds(stopwatch, multiply, rows, some, awake_with)
                    for multiply, awake_with in tried
                ]
                for _ in rounds
            ]
            for who, seconds in enumerate(zip(*taken, strict=True)):
                spreads.append(spread_of(seconds[1:]))  # the first warms up
                totals[who] += min(seconds) * len(alike) / len(some)
        for who in range(2):
            times[who].append(totals[who])
    return Trial(tuple(times[0]), tuple(times[1]), Conditions.of(spreads, stopwatch))


def _seconds(
    stopwatch: Stopwatch,
    multiply: Callable[..., Any],
    rows: Tensor,
    modules: list[nn.Linear],
    helpers: int,
) -> float:
    def all_products() -> None:
        for one in modules:
            multiply(rows, one.weight, one.bias)

    with TEAM.running(helpers):  # as in a forward
        return stopwatch.seconds(all_products)
