"""Time paceline's matrix products against torch's, and choose one per row count.

Each product of the model is timed on its own weights, once per machine; the result is cached. If
other programs disturbed a timing, the timing is used for now. The timing is repeated when a model
is loaded while the machine is less busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.activations import activation_overrides
from paceline.backend.experts import (
    ExpertsOverride,
    has_packed_experts,
    is_depthwise,
    routing_overrides,
)
from paceline.backend.plain_tensors import is_matrix
from paceline.backend.products import Products, replaceable
from paceline.backend.settings import (
    ANSWER_STEPS,
    MAX_ROWS,
    MAX_WIDE_WEIGHTS,
    MIN_MANY_ROWS,
    MIN_TIMED_NUMBERS,
    MIN_TIMED_WEIGHTS,
    NUM_MANY_ROUNDS,
    NUM_ROUNDS,
    TIE_RATIO,
    TIMED_ROWS,
)
from paceline.backend.torch_backend import TORCH
from paceline.cpu.backend import CPU
from paceline.cpu.expert_times import ExpertsKind, experts_of, time_experts
from paceline.cpu.helper_choice import with_fastest_team
from paceline.util import result_cache
from paceline.util.environment_key import environment_key
from paceline.util.stopwatch import Conditions, Stopwatch, spread_of

_KIND = "products-v11"  # increased when what is timed or written changes


@dataclass(frozen=True, slots=True)
class Trial:
    """Total seconds of a model's matrix products for each row count in `TIMED_ROWS`.

    Attributes:
        ours: Times with paceline's kernels; empty if the kernels support no product of the model.
        torchs: Times with torch's products; empty if `ours` is empty.
        conditions: Interference by other programs; None if nothing was timed.
        our_experts: Times of all experts with paceline's kernels, one expert at a time; empty if
            the model has no experts.
        torch_experts: Times of all experts with transformers' own code.
    """

    ours: tuple[float, ...] = ()
    torchs: tuple[float, ...] = ()
    conditions: Conditions | None = None
    our_experts: tuple[float, ...] = ()
    torch_experts: tuple[float, ...] = ()

    @property
    def doubtful(self) -> bool:
        """Return True if the timing was disturbed, but the machine is quieter now."""
        return self.conditions is not None and self.conditions.doubtful

    @property
    def range(self) -> tuple[int, int]:
        """Return the lowest and highest row count for paceline's matrix products.

        At every row count from the lowest to the highest, paceline's products are at least as fast
        as torch's. If there are several such ranges, the first is returned; if there is none,
        (0, 0) is returned.
        """
        wins = [
            own_seconds < TIE_RATIO * torch_seconds
            for own_seconds, torch_seconds in zip(self.ours, self.torchs, strict=True)
        ]
        if True not in wins:
            return 0, 0
        first = wins.index(True)
        last = first + [*wins[first:], False].index(False) - 1
        return TIMED_ROWS[first], MAX_ROWS if last == len(wins) - 1 else TIMED_ROWS[last]

    @property
    def experts_are_faster(self) -> bool:
        """Return True if paceline's expert kernels are not slower at any row count."""
        return all(
            own_seconds < TIE_RATIO * torch_seconds
            for own_seconds, torch_seconds in zip(self.our_experts, self.torch_experts, strict=True)
        )

    def answer_cost(self, usual_seconds: float, forward_cost: float) -> float:
        """Return the relative cost of an answer if paceline computes every matrix product.

        The cost is the time of this answer, divided by the time of an ordinary answer, which uses
        the faster products at each row count. The answer takes `ANSWER_STEPS` steps after a prompt
        of 256 tokens. The cost is computed for steps of 1, 4 and 16 rows, and the largest of the
        three costs is returned.

        Args:
            usual_seconds: Time of an ordinary forward pass over one row.
            forward_cost: Time of this pass with paceline's products, relative to `usual_seconds`.
        """
        ours, best = list(self.ours), [*map(min, self.ours, self.torchs)]
        if self.our_experts:
            ours = [*map(add, ours, self.our_experts)]
            best = [*map(add, best, self.torch_experts)]
        our_seconds = usual_seconds * forward_cost
        return max(
            (ours[-1] + ANSWER_STEPS * (our_seconds + ours[few] - ours[0]))
            / (best[-1] + ANSWER_STEPS * (usual_seconds + best[few] - best[0]))
            for few in range(3)
        )


def fastest(model: PreTrainedModel) -> Products:
    """Return the matrix products that make a model's forward passes fastest."""
    routing = routing_overrides(model, CPU)
    experts = {module: kind for module, kind in routing.items() if kind is ExpertsOverride}
    # transformers' code would unpack all experts in every call.
    packed = {module: kind for module, kind in experts.items() if has_packed_experts(module)}
    times = trial(model) if is_large(model) else Trial()
    min_rows, max_rows = times.range
    if not max_rows:
        return Products(routing=packed, backend=CPU)
    if not times.experts_are_faster:
        experts = packed
    products = Products.of_backend(model, CPU, min_rows, max_rows, experts)
    return with_fastest_team(model, products)


def everywhere(model: PreTrainedModel) -> Products | None:
    """Return paceline's matrix products, for use at any row count.

    The result is None if paceline's kernels do not support every weight.
    """
    routing = routing_overrides(model, CPU) | activation_overrides(model)
    products = Products.of_backend(model, CPU, routing=routing)
    computed = {
        id(parameter)
        for module in (*products.modules, *routing)
        for parameter in module.parameters(recurse=False)
    }
    computed |= {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    # Recurrences compute the convolution of each channel; see `paceline.recurrence`.
    computed |= {id(module.weight) for module in model.modules() if is_depthwise(module)}
    # Text does not reach the encoders of images or audio.
    reached = model.get_decoder(), model.get_output_embeddings()
    complete = all(
        id(parameter) in computed
        for module in reached
        if module is not None
        for parameter in module.parameters()
        if is_matrix(parameter)
    )
    return products if products.modules and complete else None


def trial(model: PreTrainedModel) -> Trial:
    """Return the times of a model's matrix products, measured now if not cached."""
    modules = replaceable(model, CPU)
    if not modules:
        return Trial()
    key = result_cache.ResultKey(
        _KIND, environment_key(model), f"product times of {model.__class__.__name__}", "trial.json"
    )
    return result_cache.load_or_measure(key, lambda: _try(modules, experts_of(model)), _read)


def _read(values: dict[str, Any]) -> Trial:
    return Trial(
        tuple(values["ours"]),
        tuple(values["torchs"]),
        Conditions.read(values["conditions"]),
        tuple(values["our_experts"]),
        tuple(values["torch_experts"]),
    )


def is_large(model: PreTrainedModel) -> bool:
    """Return True if a model is large enough for timing to be worthwhile."""
    size = sum(module.weight.numel() for module in replaceable(model, CPU))
    return size + sum(experts.num_weights for experts in experts_of(model)) >= MIN_TIMED_WEIGHTS


class _Timed(NamedTuple):
    """A matrix-product function, and the number of helper threads that it uses."""

    multiply: Callable[..., Tensor]
    num_helpers: int | None


@torch.inference_mode()
def _try(modules: tuple[nn.Linear, ...], experts: Sequence[ExpertsKind]) -> Trial:
    shapes: dict[tuple[int, int], list[nn.Linear]] = {}
    for module in modules:
        shapes.setdefault((module.in_features, module.out_features), []).append(module)
    times: list[list[float]] = [[], []]
    spreads: list[float] = []
    products, first = Products(modules, backend=CPU), modules[0]
    single_row = torch.ones(1, first.in_features, dtype=first.weight.dtype)
    stopwatch = Stopwatch.suited(first.weight.device, lambda: first(single_row))
    for num_rows in TIMED_ROWS:
        timed = (_Timed(CPU.linear, products.num_helpers(num_rows)), _Timed(TORCH.linear, None))
        totals = [0.0, 0.0]
        for (inner, outer), alike in shapes.items():
            if num_rows >= MIN_MANY_ROWS and inner * outer >= MAX_WIDE_WEIGHTS:
                continue
            rows = torch.ones(num_rows, inner, dtype=alike[0].weight.dtype)
            num_modules = -(-MIN_TIMED_NUMBERS // (inner * outer))
            in_turn = alike[: num_modules if num_rows < MIN_MANY_ROWS else 1]
            rounds = range(NUM_ROUNDS if num_rows < MIN_MANY_ROWS else NUM_MANY_ROUNDS)
            # Both in each round, so that other programs disturb both alike.
            seconds = [[_seconds(stopwatch, each, rows, in_turn) for each in timed] for _ in rounds]
            for index, repeats in enumerate(zip(*seconds, strict=True)):
                spreads.append(spread_of(repeats[1:]))  # the first repeat warms up
                totals[index] += min(repeats) * len(alike) / len(in_turn)
        for index in range(2):
            times[index].append(totals[index])
    expert_times = time_experts(experts, products, stopwatch)
    spreads += expert_times.spreads
    return Trial(
        tuple(times[0]),
        tuple(times[1]),
        Conditions.of(spreads, stopwatch),
        expert_times.ours,
        expert_times.torchs,
    )


def _seconds(
    stopwatch: Stopwatch, timed: _Timed, rows: Tensor, modules: Sequence[nn.Linear]
) -> float:
    def multiply_all() -> None:
        for module in modules:
            timed.multiply(rows, module.weight, module.bias)

    with CPU.thread_team(timed.num_helpers):  # as in a forward pass
        return stopwatch.seconds(multiply_all)
