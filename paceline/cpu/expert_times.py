"""Time a model's experts with paceline's kernels and with transformers' own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.backend.experts import ExpertsOverride, has_packed_experts, routing_overrides
from paceline.backend.products import Products
from paceline.backend.settings import NUM_ROUNDS, TIMED_ROWS
from paceline.cpu.backend import CPU
from paceline.util.stopwatch import Stopwatch, spread_of

_NUM_CHOICES = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_top_k", "top_k")
_DEFAULT_CHOICES = 2


@dataclass(frozen=True, slots=True)
class ExpertsKind:
    """Expert modules of a model that have the same type and the same shapes.

    Attributes:
        modules: The expert modules. Only the first is timed; the others count as equally fast.
        num_choices: Number of experts to which the router assigns each row.
    """

    modules: tuple[nn.Module, ...]
    num_choices: int

    @property
    def module(self) -> nn.Module:
        """The module that is timed; the others count as equally fast."""
        return self.modules[0]

    @property
    def num_weights(self) -> int:
        """Total number of weights in all of these modules."""
        each = sum(weight.numel() for weight in self.module.parameters(recurse=False))
        return len(self.modules) * each


@dataclass(frozen=True, slots=True)
class ExpertTimes:
    """Total time of a model's experts for each row count in `TIMED_ROWS`, in seconds.

    Attributes:
        ours: Times with paceline's kernels. Empty if the model has no experts to time.
        torchs: Times with transformers' own code. Empty if `ours` is empty.
        spreads: For each timing, the relative spread of the repeated measurements.
    """

    ours: tuple[float, ...]
    torchs: tuple[float, ...]
    spreads: tuple[float, ...]


def experts_of(model: PreTrainedModel) -> tuple[ExpertsKind, ...]:
    """Group the expert modules that paceline's kernels support by type and shape."""
    kinds: dict[tuple[Any, ...], list[nn.Module]] = {}
    for module, override in routing_overrides(model, CPU).items():
        if override is ExpertsOverride:
            shapes = tuple(weight.shape for weight in module.parameters(recurse=False))
            kinds.setdefault((type(module), shapes), []).append(module)
    config = model.config.get_text_config(decoder=True)
    known = (getattr(config, name, None) for name in _NUM_CHOICES)
    num_choices = next((count for count in known if isinstance(count, int)), _DEFAULT_CHOICES)
    return tuple(ExpertsKind(tuple(alike), num_choices) for alike in kinds.values())


def time_experts(
    kinds: Sequence[ExpertsKind], products: Products, stopwatch: Stopwatch
) -> ExpertTimes:
    """Time all experts of a model on rows that are assigned to random experts.

    The function skips packed experts, because transformers' code would unpack them in every call.

    Args:
        kinds: Groups of expert modules, from `experts_of`.
        products: paceline's matrix products for the model.
        stopwatch: Stopwatch that times the calls.
    """
    kinds = [kind for kind in kinds if not has_packed_experts(kind.module)]
    if not kinds:
        return ExpertTimes((), (), ())
    totals: list[list[float]] = [[], []]
    spreads: list[float] = []
    noise = torch.Generator().manual_seed(0)
    for num_rows in TIMED_ROWS:
        seconds = [0.0, 0.0]
        for kind in kinds:
            calls = _calls(kind, num_rows, products, noise)
            rounds = [[stopwatch.seconds(call) for call in calls] for _ in range(NUM_ROUNDS)]
            for index, repeats in enumerate(zip(*rounds, strict=True)):
                seconds[index] += len(kind.modules) * min(repeats)
                spreads.append(spread_of(repeats[1:]))  # the first repeat warms up
        for index in range(2):
            totals[index].append(seconds[index])
    return ExpertTimes(tuple(totals[0]), tuple(totals[1]), tuple(spreads))


def _calls(
    kind: ExpertsKind, num_rows: int, products: Products, noise: torch.Generator
) -> list[Callable[[], Any]]:
    """Return two functions that run an expert module: with paceline, and with torch.

    Args:
        kind: Group of expert modules. The functions run the first module of the group.
        num_rows: Number of input rows.
        products: paceline's matrix products for the model.
        noise: Random generator, which assigns the rows to experts.
    """
    module: Any = kind.module
    weight = module.down_proj
    scores = torch.rand(num_rows, module.num_experts, generator=noise)
    top = scores.topk(kind.num_choices)
    size = weight.shape[2 if module.is_transposed else 1]
    rows = torch.ones(num_rows, size, dtype=weight.dtype)
    inputs = rows, top.indices, top.values.to(weight.dtype)
    override = ExpertsOverride(module, products)
    return [lambda: override(*inputs), lambda: type(module).forward(module, *inputs)]
