"""Choose between paceline's matrix products and torch's for each row count.

The module times the products of a model on the model's own weights, once per machine, and caches
the times. Times that other programs disturbed are used as well. However, they are measured again
when a model is next loaded on a less busy machine.
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
from paceline.backend.own_code import own_code_overrides
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

_KIND = "products-v11"  # increment when the timing or the cached data change


@dataclass(frozen=True, slots=True)
class Trial:
    """The times of a model's products at each row count in `TIMED_ROWS`, in seconds.

    Attributes:
        ours: Total times with paceline's kernels. Empty if the kernels do not support any product
            of the model.
        torchs: Total times with torch's products. Empty if `ours` is empty.
        conditions: How much other programs disturbed the timing. None if nothing was timed.
        our_experts: Total times of the experts with paceline's kernels. Empty if the model has no
            experts to time.
        torch_experts: Total times of the experts with transformers' own code.
    """

    ours: tuple[float, ...] = ()
    torchs: tuple[float, ...] = ()
    conditions: Conditions | None = None
    our_experts: tuple[float, ...] = ()
    torch_experts: tuple[float, ...] = ()

    @property
    def doubtful(self) -> bool:
        """Return whether the timing was disturbed and the load has fallen since."""
        return self.conditions is not None and self.conditions.doubtful

    @property
    def range(self) -> tuple[int, int]:
        """Lowest and highest row count at which to use paceline's matrix products.

        At every timed row count in this range, paceline's products are about as fast as torch's, or
        faster. If there are several such ranges, this is the one with the smallest row counts. If
        there is none, the value is (0, 0).
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
        """Return whether paceline's expert kernels are about as fast as torch, or faster.

        The result is True only if this is the case at every timed row count.
        """
        return all(
            own_seconds < TIE_RATIO * torch_seconds
            for own_seconds, torch_seconds in zip(self.our_experts, self.torch_experts, strict=True)
        )

    def answer_cost(self, usual_seconds: float, forward_cost: float) -> float:
        """Return an answer's relative cost if paceline computes every matrix product.

        The cost is the ratio of two times for the same answer:

            time with paceline's products only / time with the faster products at each row count

        The answer is generated in `ANSWER_STEPS` decoding steps after a prompt of 256 tokens. The
        function computes the cost for steps of 1, 4 and 16 rows, and returns the largest one.

        Args:
            usual_seconds: Time of an ordinary forward pass over one row.
            forward_cost: Time of the same pass with paceline's products only, divided by
                `usual_seconds`.
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
    """Return the combination of matrix products with the fastest forward passes."""
    modules, kinds = replaceable(model, CPU), experts_of(model)
    experts = {module: ExpertsOverride for kind in kinds for module in kind.modules}
    # Packed experts always use paceline, because transformers would unpack them in every call.
    packed = {module: kind for module, kind in experts.items() if has_packed_experts(module)}
    times = _trial(model, modules, kinds) if _are_large(modules, kinds) else Trial()
    min_rows, max_rows = times.range
    if not max_rows:
        return Products(routing=packed, backend=CPU)
    if not times.experts_are_faster:
        experts = packed
    products = Products.of_backend(model, CPU, min_rows, max_rows, experts)
    return with_fastest_team(model, products)


def everywhere(model: PreTrainedModel) -> Products | None:
    """Return matrix products that use paceline's kernels at every row count.

    The result is None if the kernels do not support all weights of the model.
    """
    routing = routing_overrides(model, CPU) | activation_overrides(model)
    overrides = own_code_overrides(model) | routing
    products = Products.of_backend(model, CPU, routing=overrides)
    computed = {
        id(parameter)
        for module in (*products.modules, *routing)
        for parameter in module.parameters(recurse=False)
    }
    computed |= {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    # `paceline.recurrence` computes depthwise convolutions.
    computed |= {id(module.weight) for module in model.modules() if is_depthwise(module)}
    # The encoders of images and audio do not process text.
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
    """Return the cached times of a model's matrix products; measure them if missing."""
    return _trial(model, replaceable(model, CPU), experts_of(model))


def _trial(
    model: PreTrainedModel, modules: tuple[nn.Linear, ...], experts: Sequence[ExpertsKind]
) -> Trial:
    """Return the cached times of modules and experts; measure them if missing."""
    if not modules:
        return Trial()
    key = result_cache.ResultKey(
        _KIND, environment_key(model), f"product times of {model.__class__.__name__}", "trial.json"
    )
    return result_cache.load_or_measure(key, lambda: _try(modules, experts), _read)


def _read(values: dict[str, Any]) -> Trial:
    return Trial(
        tuple(values["ours"]),
        tuple(values["torchs"]),
        Conditions.read(values["conditions"]),
        tuple(values["our_experts"]),
        tuple(values["torch_experts"]),
    )


def is_large(model: PreTrainedModel) -> bool:
    """Return whether a model is so large that timing its products saves time."""
    return _are_large(replaceable(model, CPU), experts_of(model))


def _are_large(modules: Sequence[nn.Linear], experts: Sequence[ExpertsKind]) -> bool:
    size = sum(module.weight.numel() for module in modules)
    return size + sum(kind.num_weights for kind in experts) >= MIN_TIMED_WEIGHTS


class _Timed(NamedTuple):
    """A function to time.

    Attributes:
        multiply: Function that multiplies rows by a weight and adds a bias.
        num_helpers: Number of helper threads that the function uses; None starts no thread team.
    """

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
            # Every round times both functions, so that other programs disturb them equally.
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
