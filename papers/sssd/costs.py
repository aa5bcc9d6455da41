"""Time forward passes over draft trees, and the parts of these passes.

See Marzollo et al. 2024, figures 2 and 3.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.model.cached_lm import CachedLM
from papers.config import TimeLimit
from papers.sssd.device import MATMULS, measured_peak, shapes_of, synchronise
from papers.sssd.paper_settings import (
    BATCHES,
    COST_CONTEXTS,
    COST_ROUNDS,
    FORWARDS_SHARE,
    SIZES,
    SPLIT_BATCH,
    SPLIT_ROUNDS,
)
from papers.sssd.result import Case, CostStudy, StepCost


class Taken(NamedTuple):
    """The wall-clock and processor time of one forward pass, in seconds."""

    seconds: float
    cpu_seconds: float


def measure(model: PreTrainedModel, label: str, left: float, progress: bool) -> CostStudy:
    """Time every kind of forward pass, and then its matrix products and attention.

    Args:
        model: Model to time.
        label: Name of the model.
        left: Time limit in seconds; 0 sets no limit. At least one round is completed.
        progress: Whether to show a progress bar.
    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before every kind had been timed once.
    """
    shapes, device = shapes_of(model), model.device
    limit = TimeLimit(left)
    rig = _Rig(model)
    times: dict[Case, list[Taken]] = {case: [] for case in rig.cases}
    split: dict[Case, list[dict[str, float]]] = {
        case: [] for case in rig.cases if case.batch == SPLIT_BATCH
    }
    peak, complete = measured_peak(device, model.dtype), True
    try:
        for case in rig.cases:
            rig.run(case)  # allocates and compiles
        for round_number in limit.within(range(COST_ROUNDS), "forwards", progress, FORWARDS_SHARE):
            for case in _rotated(rig.cases, round_number):
                times[case].append(rig.run(case))
        for round_number in limit.within(range(SPLIT_ROUNDS), "parts of a forward", progress):
            for case in _rotated(list(split), round_number):
                split[case].append(rig.run_split(case))
    except KeyboardInterrupt:
        if not all(times.values()):
            raise
        complete = False
    computed = {
        case: shapes.seconds(case.batch, case.size, case.context, peak) for case in rig.cases
    }
    on_cpu = device.type == "cpu"
    steps = tuple(
        _step(case, times[case], split.get(case, []), computed[case], on_cpu) for case in rig.cases
    )
    return CostStudy(label, peak, shapes, min(map(len, times.values())), complete, steps)


class _Rig:
    """A model to time, and eight requests for each context length.

    The cached values are zeros, which take as long to read as any other values.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._device, self._lms, self._requests = model.device, {}, {}
        self._parts = _Parts(model)
        self._trees = {1: EMPTY_TREE}
        params = SamplingParams()
        for length in COST_CONTEXTS:
            lm = CachedLM(model)
            context = max(1, min(length, lm.context_length - max(SIZES) - 1))
            lm.reserve(max(BATCHES), context + max(SIZES))
            requests = [Request([row] * (context + 1), params) for row in range(max(BATCHES))]
            for request in requests:
                lm.open(request)
                request.cached = context
            self._lms[context], self._requests[context] = lm, requests
            nodes = {size: list(range(size - 1)) for size in SIZES if size > 1}
            for size, ids in nodes.items():  # a tree in which every node has two children
                branched = DraftTree(ids, [(node - 1) // 2 if node else -1 for node in ids])
                self._trees[size] = branched if lm.takes_trees else DraftTree.chain(ids)
        self.cases = [
            Case(batch, context, size)
            for context in self._lms
            for batch in BATCHES
            for size in SIZES
        ]

    def run(self, case: Case) -> Taken:
        """Run one forward pass without committing its tokens, and return its times."""
        lm, requests, tree = (
            self._lms[case.context],
            self._requests[case.context][: case.batch],
            self._trees[case.size],
        )
        synchronise(self._device)
        cpu, start = time.process_time(), time.perf_counter()
        lm.forward(requests, [tree] * case.batch)
        synchronise(self._device)
        return Taken(time.perf_counter() - start, time.process_time() - cpu)

    def run_split(self, case: Case) -> dict[str, float]:
        """Return the shares of time for "matmuls" and "attention" in one forward pass."""
        with self._parts.timed() as seconds:
            total = self.run(case).seconds
        return {name: part / total for name, part in seconds.items()}


class _Parts:
    """Times a model's linear modules, and its attention without linear modules."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._device = model.device
        self._matmuls = [module for module in model.modules() if isinstance(module, MATMULS)]
        named = {
            name: module
            for name, module in model.named_modules()
            if "Attention" in type(module).__name__
            and any(isinstance(module, MATMULS) for module in module.modules())
        }
        self._attention = [
            module
            for name, module in named.items()
            if not any(name.startswith(f"{outer}.") for outer in named)
        ]

    @contextmanager
    def timed(self) -> Iterator[dict[str, float]]:
        """Yield a dict to which the times of "matmuls" and "attention" are added."""
        seconds = {"matmuls": 0.0, "attention": 0.0}
        begun: list[float] = []

        def begin(*_: Any) -> None:
            synchronise(self._device)
            begun.append(time.perf_counter())

        def end(part: str, *_: Any) -> None:
            synchronise(self._device)
            spent = time.perf_counter() - begun.pop()
            seconds[part] += spent
            if begun:  # the linear module is part of an attention module
                seconds["attention"] -= spent

        hooks = []
        try:
            for part, modules in (("matmuls", self._matmuls), ("attention", self._attention)):
                for module in modules:
                    hooks += [
                        module.register_forward_pre_hook(begin),
                        module.register_forward_hook(partial(end, part)),
                    ]
            yield seconds
        finally:
            for hook in hooks:
                hook.remove()


def _step(
    case: Case,
    times: list[Taken],
    split: list[dict[str, float]],
    computed: tuple[float, float],
    on_cpu: bool,
) -> StepCost:
    """Return the median times of a forward pass and of its parts.

    The parts are timed in separate passes. Timing them makes a pass slower, so only their shares of
    the time are used.
    """
    seconds, cpu_seconds = (statistics.median(column) for column in zip(*times, strict=True))
    parts = {
        name: seconds * statistics.median(shares[name] for shares in split)
        for name in (split[0] if split else ())
    }
    return StepCost(*case, seconds, cpu_seconds if on_cpu else None, computed, **parts)


def _rotated(cases: list[Case], round_number: int) -> list[Case]:
    shift = round_number * len(cases) // COST_ROUNDS
    return cases[shift:] + cases[:shift]
