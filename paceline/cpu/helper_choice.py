"""Choose how many helper threads share the matrix products of a decoding step.

More threads are not always faster. If two logical cores share a physical core, or if the machine
has few memory channels, two threads may be slower than one. This module therefore times the model's
own matrix products with different numbers of helper threads, once per machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.backend.products import Products
from paceline.backend.settings import (
    HELPER_ROWS,
    MAX_HELPER_WEIGHTS,
    MAX_HELPERS,
    MIN_HELPER_GAIN,
    NUM_HELPER_ROUNDS,
)
from paceline.cpu.backend import CPU
from paceline.util import result_cache
from paceline.util.environment_key import environment_key
from paceline.util.stopwatch import Conditions, Stopwatch, spread_of

_KIND = "helper-threads-v1"  # increment when the timing or the cached data change


@dataclass(frozen=True, slots=True)
class HelperTimes:
    """Times of a model's matrix products with different numbers of helper threads.

    Attributes:
        counts: Numbers of helper threads, in ascending order.
        seconds: Total time of the products for each number of helper threads, in seconds.
        conditions: How much other programs disturbed the timing.
    """

    counts: tuple[int, ...]
    seconds: tuple[float, ...]
    conditions: Conditions

    @property
    def doubtful(self) -> bool:
        """Return whether the timing was disturbed and the load has fallen since."""
        return self.conditions.doubtful

    @property
    def best(self) -> int:
        """Smallest number of helper threads whose time is close to the best time."""
        limit = min(self.seconds) / (1 - MIN_HELPER_GAIN)
        each = zip(self.counts, self.seconds, strict=True)
        return next(count for count, seconds in each if seconds <= limit)


def with_fastest_team(model: PreTrainedModel, products: Products) -> Products:
    """Limit a model's matrix products to a measured number of helper threads.

    The limit is the smallest number whose measured time is close to the shortest time.

    Args:
        model: Model on a CPU.
        products: Matrix products of the CPU backend for this model.
    """
    threads = torch.get_num_threads()
    if threads == 1 or not products.modules:
        return products
    key = result_cache.ResultKey(
        _KIND,
        environment_key(model),
        f"helper threads of {model.__class__.__name__}",
        "helpers.json",
    )
    times = result_cache.load_or_measure(key, lambda: _time(products, threads), _read)
    return replace(products, max_helpers=times.best)


def _read(values: dict[str, Any]) -> HelperTimes:
    conditions = Conditions.read(values["conditions"])
    return HelperTimes(tuple(values["counts"]), tuple(values["seconds"]), conditions)


@torch.inference_mode()
def _time(products: Products, threads: int) -> HelperTimes:
    """Time the products with one thread, with half of the threads, and with all."""
    counts = sorted({0, *(min(count - 1, MAX_HELPERS) for count in (-(-threads // 2), threads))})
    modules = _first_modules(products.modules)
    totals, spreads = [0.0] * len(counts), []
    stopwatch = Stopwatch(torch.device("cpu"))
    for num_rows in HELPER_ROWS:
        inputs = [
            torch.ones(num_rows, module.in_features, dtype=module.weight.dtype)
            for module in modules
        ]

        def multiply_all(inputs: Sequence[torch.Tensor] = inputs) -> None:
            for rows, module in zip(inputs, modules, strict=True):
                CPU.linear(rows, module.weight, module.bias)

        # Every round times all counts, so that other programs disturb them equally.
        rounds = []
        for _ in range(1 + NUM_HELPER_ROUNDS):
            taken = []
            for count in counts:
                with CPU.thread_team(count):
                    taken.append(stopwatch.seconds(multiply_all))
            rounds.append(taken)
        for index, repeats in enumerate(zip(*rounds[1:], strict=True)):  # the first round warms up
            totals[index] += median(repeats)
            spreads.append(spread_of(repeats))
    return HelperTimes(tuple(counts), tuple(totals), Conditions.of(spreads, stopwatch))


def _first_modules(modules: Sequence[nn.Module]) -> list[nn.Linear]:
    """Return the first linear modules, up to about `MAX_HELPER_WEIGHTS` weights."""
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    before = accumulate((module.weight.numel() for module in linear), initial=0)
    return [
        module
        for module, weights in zip(linear, before, strict=False)
        if weights < MAX_HELPER_WEIGHTS
    ]
