"""Measure how much batch invariance slows decoding at several context lengths.

Steps with and without batch invariance alternate within one run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from paceline.bench.environment import Environment, load_average, look_around
from paceline.bench.report import provenance
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.settings import PREFILL_CHUNK
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import load_model
from paceline.model.per_layer import key_shapes
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.report.tables import Table

WARMUP_ROUNDS = 1  # Untimed rounds of every combination.


@dataclass(frozen=True, slots=True)
class ContextCost:
    """Step times at one context length.

    Attributes:
        dtype: Data type of the model.
        batch: Number of requests.
        context: Number of cached tokens per request.
        drafts: Number of draft nodes per request; the nodes form a chain.
        seconds: Durations of the batch-invariant steps.
        usual: Durations of the steps without batch invariance.
    """

    dtype: str
    batch: int
    context: int
    drafts: int
    seconds: list[float]
    usual: list[float]

    @property
    def speed(self) -> float:
        """Return the speed with batch invariance, as a fraction of the usual speed.

        Both speeds are computed from the median step time.
        """
        return statistics.median(self.usual) / statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class InvarianceCost:
    """The result of a measurement.

    Attributes:
        model: Name of the model.
        clock: "processor" (processor time) with one thread, otherwise "wall". Other processes
            barely affect processor time.
        reasons: For each dtype, the results of the probes.
        costs: Step times of all combinations.
        environment: Description of the machine.
    """

    model: str
    clock: str
    reasons: dict[str, str]
    costs: list[ContextCost]
    environment: Environment


KIND = DocumentKind("invariance-cost", 1, InvarianceCost)


def measure(
    model: str,
    dtypes: Sequence[str],
    batches: Sequence[int],
    contexts: Sequence[int],
    drafts: Sequence[int],
    rounds: int,
    finished: Callable[[ContextCost], None] = lambda cost: None,
) -> InvarianceCost:
    """Measure all combinations; the caller must set torch's number of threads.

    Args:
        model: Name of the model.
        dtypes, batches, contexts, drafts: Values to test; every combination is measured.
        rounds: Number of steps of each kind per combination.
        finished: Function called after each combination.
    Raises:
        ConfigError: The model cannot be loaded, or cannot be batch-invariant on this machine.
    """
    environment = look_around(torch.device("cpu"))
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    costs, reasons = [], {}
    for dtype in dtypes:
        loaded = load_model(model, dtype, "cpu")
        invariance = resolve_batch_invariance(loaded, True, max(batches))
        reasons[dtype] = invariance.details
        for context in contexts:
            for batch in batches:
                steps = [
                    _TimedSteps(lm, batch, context)
                    for lm in (
                        CachedLM(loaded, **invariance.model_options(PREFILL_CHUNK)),
                        CachedLM(loaded),
                    )
                ]
                for nodes in drafts:
                    times: list[list[float]] = [[], []]
                    for turn in range(WARMUP_ROUNDS + rounds):
                        for index, step in enumerate(steps):
                            spent = step.seconds(nodes, clock)
                            if turn >= WARMUP_ROUNDS:
                                times[index].append(spent)
                    costs.append(ContextCost(dtype, batch, context, nodes, *times))
                    finished(costs[-1])
    environment = replace(environment, load_end=load_average())
    return InvarianceCost(
        model, "processor" if clock is time.process_time else "wall", reasons, costs, environment
    )


class _TimedSteps:
    """Times steps of requests whose cached keys and values are random.

    Attention takes as long to read random values as real ones.
    """

    def __init__(self, lm: CachedLM, batch: int, context: int) -> None:
        self._lm = lm
        self._requests = [Request([1] * (context + 1), SamplingParams()) for _ in range(batch)]
        shapes = key_shapes(lm.model.config.get_text_config(decoder=True))
        lm.reserve(batch, context + 1 + 64)
        for request in self._requests:
            lm.open(request)
            for layer, (heads, dim) in enumerate(shapes):
                states = torch.randn(heads, context, dim, dtype=lm.model.dtype)
                lm.load(request, layer, 0, states, states)
            request.cached = context

    def seconds(self, nodes: int, clock: Callable[[], float]) -> float:
        """Run one forward pass without committing its tokens, and return the duration."""
        trees = [DraftTree.chain([1] * nodes) if nodes else EMPTY_TREE for _ in self._requests]
        start = clock()
        self._lm.forward(self._requests, trees).argmax(-1).tolist()
        return clock() - start


def table(result: InvarianceCost) -> Table:
    """Return a table of median step times with and without batch invariance."""
    rows = [
        (
            cost.dtype,
            str(cost.context),
            str(cost.batch),
            str(cost.drafts),
            1e3 * statistics.median(cost.usual),
            1e3 * statistics.median(cost.seconds),
            cost.speed,
        )
        for cost in result.costs
    ]
    headings = (
        "dtype",
        "context",
        "batch",
        "drafts",
        "ms per step, off",
        "ms per step, on",
        "relative speed",
    )
    return Table.of("", headings, rows)


def cost_table(result: InvarianceCost) -> str:
    """Return the table in Markdown, including a description of the setup."""
    environment, clock = (
        result.environment,
        "processor time" if result.clock == "processor" else "wall-clock time",
    )
    load = environment.load_start
    busy = f"load average {load[0]:g}" if load else "load average unknown"
    setting = f"{result.model}, {environment.hardware}, {clock}, {busy}; {provenance(environment)}."
    return "\n".join([*table(result).markdown(), setting])


def write_cost(result: InvarianceCost, path: str | Path) -> None:
    """Write the complete result as JSON.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_document(path, KIND, result, summary=table(result).data())


def read_cost(path: str | Path) -> InvarianceCost:
    """Read a result written by `write_cost`.

    Raises:
        ConfigError: The file does not exist, is damaged, or has a different schema.
    """
    return read_document(path, KIND)
