"""What batch invariance costs behind contexts of several lengths: steps with it and without, by
turns, in one run.
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
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.cached_lm import PREFILL_CHUNK, CachedLM
from paceline.model.loading import load_model
from paceline.model.per_layer import key_shapes
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.report.tables import Table

_WARMUP = 1


@dataclass(frozen=True, slots=True)
class ContextCost:
    """Steps behind one length of context.

    Attributes:
        batch: sequences; context: tokens of each in the cache; drafts: nodes of each sequence's
            chain.
        seconds, usual: of each step, batch-invariant and not, by turns.
    """

    dtype: str
    batch: int
    context: int
    drafts: int
    seconds: list[float]
    usual: list[float]

    @property
    def speed(self) -> float:
        """Tokens per second without drafts, over those of the usual steps: medians."""
        return statistics.median(self.usual) / statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class InvarianceCost:
    """A run.

    Attributes:
        clock: "processor" (with one thread, so that other processes count little) or "wall".
        reasons: what was proven, by dtype.
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
    """Measure every combination; torch's number of threads must be set.

    Args:
        rounds: steps of each kind per combination.
    Raises:
        ConfigError: the model cannot be loaded, or cannot be batch-invariant here.
    """
    environment = look_around(torch.device("cpu"))
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    costs, reasons = [], {}
    for dtype in dtypes:
        loaded = load_model(model, dtype, "cpu")
        found = resolve_batch_invariance(loaded, True, max(batches))
        reasons[dtype] = found.reason
        for context in contexts:
            for batch in batches:
                steps = [
                    _Steps(lm, batch, context)
                    for lm in (CachedLM(loaded, **found.of_model(PREFILL_CHUNK)), CachedLM(loaded))
                ]
                for nodes in drafts:
                    times: list[list[float]] = [[], []]
                    for turn in range(_WARMUP + rounds):
                        for place, one in enumerate(steps):
                            spent = one.seconds(nodes, clock)
                            if turn >= _WARMUP:
                                times[place].append(spent)
                    costs.append(ContextCost(dtype, batch, context, nodes, *times))
                    finished(costs[-1])
    environment = replace(environment, load_end=load_average())
    return InvarianceCost(
        model, "processor" if clock is time.process_time else "wall", reasons, costs, environment
    )


class _Steps:
    """Sequences whose caches hold random states, which takes as long to read as those of a text."""

    def __init__(self, lm: CachedLM, batch: int, context: int) -> None:
        self._lm = lm
        self._seqs = [Request([1] * (context + 1), SamplingParams()) for _ in range(batch)]
        shapes = key_shapes(lm.model.config.get_text_config(decoder=True))
        lm.reserve(batch, context + 1 + 64)
        for request in self._seqs:
            lm.open(request)
            for layer, (heads, dim) in enumerate(shapes):
                states = torch.randn(heads, context, dim, dtype=lm.model.dtype)
                lm.load(request, layer, 0, states, states)
            request.cached = context

    def seconds(self, nodes: int, clock: Callable[[], float]) -> float:
        """Return the time of one step, of which nothing is committed."""
        trees = [DraftTree.chain([1] * nodes) if nodes else EMPTY_TREE for _ in self._seqs]
        start = clock()
        self._lm.forward(self._seqs, trees).argmax(-1).tolist()
        return clock() - start


def table(result: InvarianceCost) -> Table:
    """Return the medians of steps without batch invariance and with it, and the speed that is
    left.
    """
    rows = [
        (
            one.dtype,
            str(one.context),
            str(one.batch),
            str(one.drafts),
            1e3 * statistics.median(one.usual),
            1e3 * statistics.median(one.seconds),
            one.speed,
        )
        for one in result.costs
    ]
    headings = (
        "dtype",
        "context",
        "batch",
        "drafts",
        "ms of a step without",
        "with",
        "tokens/s over without",
    )
    return Table.of("", headings, rows)


def cost_table(result: InvarianceCost) -> str:
    """Return the table in Markdown, and where it was measured."""
    where, clock = (
        result.environment,
        "the process's own time" if result.clock == "processor" else "wall-clock time",
    )
    busy = f"load {where.load_start[0]:g}" if where.load_start else "load unknown"
    setting = f"{result.model}, {where.hardware}, {clock}, {busy}; {provenance(where)}."
    return "\n".join([*table(result).markdown(), setting])


def write_cost(result: InvarianceCost, path: str | Path) -> None:
    """Write everything a run left.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_document(path, KIND, result, summary=table(result).data())


def read_cost(path: str | Path) -> InvarianceCost:
    """Read a result that `write_cost` wrote.

    Raises:
        ConfigError: not such a file, one of another schema, or a damaged one.
    """
    return read_document(path, KIND)
