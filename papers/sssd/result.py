"""Store the results for the SSSD paper (Marzollo et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from paceline.replay.report import ReplayRow
from paceline.replay.run import ReplayResult
from papers.part import BenchPart
from papers.sssd.options import SssdConfig
from papers.sssd.paper_settings import (
    BATCHES,
    SPLIT_BATCH,
)
from papers.sssd.roofline import Peak, Shapes

# sources; WINDOW: the newest tokens
BOTH, REQUEST, STORE, WINDOW = ("both", "request", "datastore", "window")


def published(source: str) -> str:
    """Return the name of the method that uses a source with the paper's fixed weights."""
    return f"{source}, paper's"


class Case(NamedTuple):
    """A kind of forward pass: number of requests, cached tokens and query tokens."""

    batch: int
    context: int
    size: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """Median times of one kind of forward pass, in seconds.

    Attributes:
        batch: Number of requests.
        context: Number of cached tokens per request.
        size: Number of query tokens per request, s_q.
        seconds: Wall-clock time.
        cpu_seconds: Processor time, which depends less on other jobs; None on an accelerator.
        roofline: Times of matrix products and of attention according to the roofline model.
        matmuls: Measured time of the matrix products; None if unknown.
        attention: Measured time of the attention; None if unknown.
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
        """Return the time of all other operations."""
        return (
            None
            if self.matmuls is None or self.attention is None
            else self.seconds - self.matmuls - self.attention
        )


@dataclass(frozen=True, slots=True)
class CostStudy:
    """The durations of a model's forward passes on one machine.

    Attributes:
        label: Name of the model.
        peak: Measured peak rates of the machine.
        shapes: Shapes of the model.
        rounds: Number of times that each kind of forward pass was timed.
        complete: Whether the study was completed without interruption.
        steps: Times of each kind of forward pass.
    """

    label: str
    peak: Peak
    shapes: Shapes
    rounds: int
    complete: bool
    steps: tuple[StepCost, ...]

    @property
    def contexts(self) -> list[int]:
        """Return the numbers of cached tokens in ascending order."""
        return sorted({step.context for step in self.steps})

    def relative(self, case: Case, processor: bool = False) -> float | None:
        """Return the measured time of a forward pass, relative to plain decoding.

        Args:
            case: Kind of forward pass.
            processor: Whether to compare processor times, which are None on an accelerator.
        """
        steps = {Case(step.batch, step.context, step.size): step for step in self.steps}
        step, plain = steps[case], steps[case._replace(size=1)]
        if not processor:
            return step.seconds / plain.seconds
        return (
            step.cpu_seconds / plain.cpu_seconds if step.cpu_seconds and plain.cpu_seconds else None
        )

    def split(self) -> list[StepCost]:
        """Return the forward passes in figure 3."""
        return [step for step in self.steps if step.batch == SPLIT_BATCH]


@dataclass(frozen=True, slots=True)
class Study:
    """Replays of several sets of recorded answers.

    Attributes:
        complete: Whether the study was completed without interruption.
        answers: Number of answers in each set.
        tokens: Number of tokens in each set.
        rows: Results of the replays.
    """

    complete: bool
    answers: dict[str, int]
    tokens: dict[str, int]
    rows: tuple[ReplayRow, ...]

    @property
    def sizes(self) -> list[int]:
        """Return the replayed sizes s_q, and 1 for plain decoding; empty without replays."""
        return sorted({1, *(row.result.max_nodes + 1 for row in self.rows)}) if self.rows else []

    @property
    def methods(self) -> list[str]:
        """Return the names of the replayed methods."""
        return list(dict.fromkeys(row.drafter for row in self.rows))

    @property
    def fusions(self) -> list[str]:
        """Return the method that uses all sources, with our weights and the paper's."""
        main = BOTH if BOTH in self.methods else REQUEST
        return [main, published(main)]

    def result(self, method: str, size: int, name: str | None = None) -> ReplayResult | None:
        """Return a method's counts at s_q = `size`; None if it was not replayed.

        Args:
            method: Name of the method.
            size: Number of query tokens per request, s_q.
            name: Name of the set; None sums over all sets.
        """
        results = [
            row.result
            for row in self.rows
            if (row.drafter, row.result.max_nodes) == (method, size - 1)
            and name in (None, row.traces)
        ]
        if not results:
            return None
        sums = (
            sum(getattr(result, field) for result in results)
            for field in ("tokens", "steps", "drafted", "accepted", "seconds")
        )
        return ReplayResult(size - 1, results[0].batch_size, *sums)

    def rate(self, method: str, size: int, name: str | None = None) -> float | None:
        """Return a method's tokens per step at s_q = `size`; 1 for plain decoding."""
        if size == 1:
            return 1.0 if method in self.methods else None
        counts = self.result(method, size, name)
        return None if counts is None else counts.tokens_per_step


NOTHING = Study(True, {}, {}, ())


@dataclass(frozen=True, slots=True)
class VocabularyStudy:
    """The results of figure 5: the same answers and datastore in several vocabularies.

    Attributes:
        study: Results of the replays, with one set per vocabulary.
        sizes: Number of tokens in each vocabulary.
        characters: Number of characters in the answers.
        store_tokens: Length of the datastore in tokens of each vocabulary; 0 without a datastore.
    """

    study: Study
    sizes: dict[str, int]
    characters: int
    store_tokens: dict[str, int]

    @property
    def complete(self) -> bool:
        """Return whether the study was completed without interruption."""
        return self.study.complete

    def characters_per_token(self, name: str) -> float:
        """Return the mean number of characters per answer token in a vocabulary."""
        return self.characters / max(1, self.study.tokens[name])

    def characters_per_step(self, method: str, size: int, name: str) -> float | None:
        """Return a method's mean number of characters per step in a vocabulary."""
        rate = self.study.rate(method, size, name)
        return None if rate is None else rate * self.characters_per_token(name)


@dataclass(frozen=True, slots=True)
class SssdResult:
    """Results for the paper; fields that were not measured are None or empty.

    Attributes:
        config: Configuration of the measurement.
        store: Folder of the datastore; None without a datastore.
        store_tokens: Number of tokens in the datastore.
        timed: Timed runs for figure 2, one per batch size.
        replays: Replays for figures 2 and 4.
        costs: Durations of forward passes for figures 2 and 3 and for table 1.
        temperatures: Replays for section 4.2.
        vocabularies: Replays for figure 5.
    """

    title: ClassVar[str] = "SSSD (Marzollo, Zhuang, Roemer, Müller, Cavigelli, 2024)"

    config: SssdConfig
    store: str | None
    store_tokens: int
    timed: tuple[BenchPart, ...]
    replays: Study | None = None
    costs: CostStudy | None = None
    temperatures: Study | None = None
    vocabularies: VocabularyStudy | None = None

    @property
    def parts(self) -> list[BenchPart]:
        """Return the benchmark runs that were measured."""
        return list(self.timed)

    @property
    def complete(self) -> bool:
        """Return whether everything was measured without interruption."""
        measured = None not in (self.replays, self.costs, self.temperatures, self.vocabularies)
        return measured and len(self.timed) == len(BATCHES) and self.unbroken

    @property
    def unbroken(self) -> bool:
        """Return whether nothing has been interrupted so far."""
        measured = (*self.timed, self.replays, self.costs, self.temperatures, self.vocabularies)
        return all(study.complete for study in measured if study is not None)
