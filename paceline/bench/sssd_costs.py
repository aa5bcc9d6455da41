"""What a forward over a draft tree takes on this machine, and which part of it (Marzollo et al. 2024, figures 2 and 3)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from torch import nn
from transformers import PreTrainedModel

from paceline.bench.sssd_roofline import MATMULS, Peak, Shapes, synchronise
from paceline.model import CachedLM
from paceline.sequence import SamplingParams, Sequence
from paceline.tree import EMPTY_TREE, DraftTree

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)  # s_q: tokens fed per sequence, the newest one and the nodes of the tree
BATCHES = (1, 8)
SPLIT_BATCH = 8  # of figure 3
_CONTEXTS = (128, 1024)
_ROUNDS, _SPLIT_ROUNDS = 15, 5
_SHARE = 0.7  # of the time, until the parts are timed one by one


class Case(NamedTuple):
    """One kind of forward: sequences, cached tokens of each, tokens fed for each."""

    batch: int
    context: int
    size: int


class Taken(NamedTuple):
    """Seconds of one forward, and of the processor."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """One kind of forward, measured: medians in seconds.

    Attributes:
        cpu_seconds: likewise in processor time, which other jobs on the machine disturb less; None on an accelerator.
        roofline: by the roofline, matrix products and attention.
        matmuls, attention: of `seconds`, what matrix products and attention took; None where it was not measured.
    """

    batch: int
    context: int
    size: int
    seconds: float
    cpu_seconds: float | None
    roofline: tuple[float, float]
    matmuls: float | None = None
    attention: float | None = None

    @property
    def rest(self) -> float | None:
        """Of `seconds`, what is neither."""
        return None if self.matmuls is None or self.attention is None else self.seconds - self.matmuls - self.attention


@dataclass(frozen=True, slots=True)
class CostStudy:
    """Forwards of a model on a machine.

    Attributes:
        rounds: how often each kind was timed.
    """

    label: str
    peak: Peak
    shapes: Shapes
    rounds: int
    complete: bool
    steps: tuple[StepCost, ...]

    @staticmethod
    def read(values: dict[str, Any]) -> CostStudy:
        """From its JSON form."""
        steps = tuple(StepCost(**{**one, "roofline": tuple(one["roofline"])}) for one in values["steps"])
        return CostStudy(**{**values, "peak": Peak(**values["peak"]), "shapes": Shapes.read(values["shapes"]), "steps": steps})

    @property
    def contexts(self) -> list[int]:
        """The numbers of cached tokens, the smaller one first."""
        return sorted({one.context for one in self.steps})

    def relative(self, case: Case, processor: bool = False) -> float | None:
        """Measured time over that of plain decoding; with `processor`, processor time, None on an accelerator."""
        steps = {Case(one.batch, one.context, one.size): one for one in self.steps}
        one, plain = steps[case], steps[case._replace(size=1)]
        if not processor:
            return one.seconds / plain.seconds
        return one.cpu_seconds / plain.cpu_seconds if one.cpu_seconds and plain.cpu_seconds else None

    def split(self) -> list[StepCost]:
        """The forwards of figure 3."""
        return [one for one in self.steps if one.batch == SPLIT_BATCH]


def roofline(shapes: Shapes, peak: Peak, case: Case) -> float:
    """Time of a forward over that of plain decoding, by the roofline."""
    batch, context, size = case
    return sum(shapes.seconds(batch, size, context, peak)) / sum(shapes.seconds(batch, 1, context, peak))


def measure(model: PreTrainedModel, label: str, left: float, progress: bool) -> CostStudy:
    """Time every kind of forward in turn, round after round; then matrix products and attention one by one.

    Args:
        left: seconds that may be used; 0 = no limit. One round is always made.
    Raises:
        KeyboardInterrupt: before every kind was timed once.
    """
    shapes, device = Shapes.of(model), model.device
    start = time.perf_counter()
    rig = _Rig(model)
    times: dict[Case, list[Taken]] = {case: [] for case in rig.cases}
    split: dict[Case, list[dict[str, float]]] = {case: [] for case in rig.cases if case.batch == SPLIT_BATCH}
    peak, complete = Peak.measured(device, model.dtype), True
    try:
        for case in rig.cases:
            rig.run(case)  # allocates and compiles
        for turn in _rounds(_ROUNDS, "forwards", left * _SHARE, start, progress):
            for case in _rotated(rig.cases, turn):
                times[case].append(rig.run(case))
        for turn in _rounds(_SPLIT_ROUNDS, "parts of a forward", left, start, progress):
            for case in _rotated(list(split), turn):
                split[case].append(rig.run_split(case))
    except KeyboardInterrupt:
        if not all(times.values()):
            raise
        complete = False
    steps = tuple(
        _step(
            case,
            times[case],
            split.get(case, []),
            shapes.seconds(case.batch, case.size, case.context, peak),
            device.type == "cpu",
        )
        for case in rig.cases
    )
    return CostStudy(label, peak, shapes, min(map(len, times.values())), complete, steps)


class _Rig:
    """A model with eight sequences of each context, whose cached tokens are nothing but zeros: the time is the same."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._device, self._lms, self._seqs = model.device, {}, {}
        self._parts = _Parts(model)
        self._trees = {1: EMPTY_TREE}
        params = SamplingParams()
        for wanted in _CONTEXTS:
            lm = CachedLM(model)
            context = max(1, min(wanted, lm.context_length - max(SIZES) - 1))
            lm.reserve(max(BATCHES), context + max(SIZES))
            seqs = [Sequence([row] * (context + 1), params) for row in range(max(BATCHES))]
            for seq in seqs:
                lm.open(seq)
                seq.cached = context
            self._lms[context], self._seqs[context] = lm, seqs
            nodes = {size: list(range(size - 1)) for size in SIZES if size > 1}
            for size, ids in nodes.items():  # a tree in which every node has two children
                branched = DraftTree(ids, [(node - 1) // 2 if node else -1 for node in ids])
                self._trees[size] = branched if lm.takes_trees else DraftTree.chain(ids)
        self.cases = [Case(batch, context, size) for context in self._lms for batch in BATCHES for size in SIZES]

    def run(self, case: Case) -> Taken:
        """One forward; nothing is kept of it."""
        lm, seqs, tree = self._lms[case.context], self._seqs[case.context][: case.batch], self._trees[case.size]
        synchronise(self._device)
        cpu, start = time.process_time(), time.perf_counter()
        lm.forward(seqs, [tree] * case.batch)
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
        named = [
            (name, module)
            for name, module in model.named_modules()
            if "Attention" in type(module).__name__ and any(isinstance(one, MATMULS) for one in module.modules())
        ]
        outer = {name for name, _ in named}
        self._attention = [
            module for name, module in named if not any(name.startswith(f"{other}.") for other in outer if other != name)
        ]

    @contextmanager
    def timed(self) -> Iterator[dict[str, float]]:
        """While open, forwards add to the seconds given: "matmuls" and "attention"."""
        seconds = {"matmuls": 0.0, "attention": 0.0}
        begun: list[float] = []
        inside = [False]

        def begin(module: nn.Module, inputs: Any) -> None:
            synchronise(self._device)
            begun.append(time.perf_counter())

        def taken() -> float:
            synchronise(self._device)
            return time.perf_counter() - begun.pop()

        def end_matmul(module: nn.Module, inputs: Any, output: Any) -> None:
            spent = taken()
            seconds["matmuls"] += spent
            seconds["attention"] -= spent if inside[0] else 0.0

        def begin_attention(module: nn.Module, inputs: Any) -> None:
            begin(module, inputs)
            inside[0] = True

        def end_attention(module: nn.Module, inputs: Any, output: Any) -> None:
            seconds["attention"] += taken()
            inside[0] = False

        hooks = []
        try:
            for module in self._matmuls:
                hooks += [module.register_forward_pre_hook(begin), module.register_forward_hook(end_matmul)]
            for module in self._attention:
                hooks += [module.register_forward_pre_hook(begin_attention), module.register_forward_hook(end_attention)]
            yield seconds
        finally:
            for hook in hooks:
                hook.remove()


def _step(case: Case, times: list[Taken], split: list[dict[str, float]], computed: tuple[float, float], on_cpu: bool) -> StepCost:
    """Medians; the parts keep the share that they had where they were timed one by one, which takes longer in all."""
    seconds, cpu_seconds = (statistics.median(column) for column in zip(*times, strict=True))
    parts = {name: seconds * statistics.median(one[name] for one in split) for name in (split[0] if split else ())}
    return StepCost(*case, seconds, cpu_seconds if on_cpu else None, computed, **parts)


def _rounds(count: int, what: str, left: float, start: float, progress: bool) -> Iterator[int]:
    """The numbers of up to `count` rounds, the last one being that in which the time is up."""
    for turn in track(range(count), what, console=Console(stderr=True), transient=True, disable=not progress):
        yield turn
        if 0 < left < time.perf_counter() - start:
            return


def _rotated(cases: list[Case], turn: int) -> list[Case]:
    at = turn * len(cases) // _ROUNDS
    return cases[at:] + cases[:at]
