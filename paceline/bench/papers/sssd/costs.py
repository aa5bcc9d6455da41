"""What a forward over a draft tree takes on this machine, and which part of it (Marzollo et al.
2024, figures 2 and 3).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.sssd.device import MATMULS, measured_peak, shapes_of, synchronise
from paceline.bench.papers.sssd.result import BATCHES, SIZES, SPLIT_BATCH, Case, CostStudy, StepCost
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.model.cached_lm import CachedLM

_CONTEXTS = (128, 1024)
_ROUNDS, _SPLIT_ROUNDS = 15, 5
_SHARE = 0.7  # of the time, until the parts are timed one by one


class Taken(NamedTuple):
    """Seconds of one forward, and of the processor."""

    seconds: float
    cpu_seconds: float


def measure(model: PreTrainedModel, label: str, left: float, progress: bool) -> CostStudy:
    """Time every kind of forward in turn, round after round; then matrix products and attention one
    by one.

    Args:
        left: seconds that may be used; 0 = no limit. One round is always made.
    Raises:
        KeyboardInterrupt: before every kind was timed once.
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
        for turn in limit.within(range(_ROUNDS), "forwards", progress, _SHARE):
            for case in _rotated(rig.cases, turn):
                times[case].append(rig.run(case))
        for turn in limit.within(range(_SPLIT_ROUNDS), "parts of a forward", progress):
            for case in _rotated(list(split), turn):
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
    """A model with eight sequences of each context, whose cached tokens are nothing but zeros:
    the time is the same.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._device, self._lms, self._seqs = model.device, {}, {}
        self._parts = _Parts(model)
        self._trees = {1: EMPTY_TREE}
        params = SamplingParams()
        for wanted in _CONTEXTS:
            lm = CachedLM(model)
            context = max(1, min(wanted, lm.context_length - max(SIZES) - 1))
            lm.reserve(max(BATCHES), context + max(SIZES))
            requests = [Request([row] * (context + 1), params) for row in range(max(BATCHES))]
            for request in requests:
                lm.open(request)
                request.cached = context
            self._lms[context], self._seqs[context] = lm, requests
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
        """One forward; nothing is kept of it."""
        lm, requests, tree = (
            self._lms[case.context],
            self._seqs[case.context][: case.batch],
            self._trees[case.size],
        )
        synchronise(self._device)
        cpu, start = time.process_time(), time.perf_counter()
        lm.forward(requests, [tree] * case.batch)
        synchronise(self._device)
        return Taken(time.perf_counter() - start, time.process_time() - cpu)

    def run_split(self, case: Case) -> dict[str, float]:
        """Shares that "matmuls" and "attention" have in one forward, measured one by one."""
        with self._parts.timed() as seconds:
            whole = self.run(case).seconds
        return {name: part / whole for name, part in seconds.items()}


class _Parts:
    """Times the linear modules of a model, and what attention modules do besides."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._device = model.device
        self._matmuls = [module for module in model.modules() if isinstance(module, MATMULS)]
        named = {
            name: module
            for name, module in model.named_modules()
            if "Attention" in type(module).__name__
            and any(isinstance(one, MATMULS) for one in module.modules())
        }
        self._attention = [
            one
            for name, one in named.items()
            if not any(name.startswith(f"{outer}.") for outer in named)
        ]

    @contextmanager
    def timed(self) -> Iterator[dict[str, float]]:
        """While open, forwards add to the seconds given: "matmuls" and "attention"."""
        seconds = {"matmuls": 0.0, "attention": 0.0}
        begun: list[float] = []

        def begin(*_: Any) -> None:
            synchronise(self._device)
            begun.append(time.perf_counter())

        def end(part: str, *_: Any) -> None:
            synchronise(self._device)
            spent = time.perf_counter() - begun.pop()
            seconds[part] += spent
            if begun:  # within an attention module
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
    """Medians; the parts keep the share that they had where they were timed one by one, which
    takes longer in all.
    """
    seconds, cpu_seconds = (statistics.median(column) for column in zip(*times, strict=True))
    parts = {
        name: seconds * statistics.median(one[name] for one in split)
        for name in (split[0] if split else ())
    }
    return StepCost(*case, seconds, cpu_seconds if on_cpu else None, computed, **parts)


def _rotated(cases: list[Case], turn: int) -> list[Case]:
    at = turn * len(cases) // _ROUNDS
    return cases[at:] + cases[:at]
