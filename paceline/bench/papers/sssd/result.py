"""What is measured of the SSSD paper (Marzollo et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from paceline.bench.papers.part import BenchPart
from paceline.bench.papers.sssd.options import SssdConfig
from paceline.plan.roofline import Peak, Shapes
from paceline.replay.report import ReplayRow
from paceline.replay.run import ReplayResult

SIZES = (
    1,
    2,
    4,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
)  # s_q: tokens fed per sequence, the newest one and the nodes of the tree
BATCHES = (1, 8)
SPLIT_BATCH = 8  # of figure 3
BOTH, REQUEST, STORE, WINDOW = (
    "both",
    "request",
    "datastore",
    "window",
)  # sources; WINDOW: what the newest tokens alone give


def published(source: str) -> str:
    """Return the source with the paper's hand-set weights in place of the calibration."""
    return f"{source}, paper's"


class Case(NamedTuple):
    """One kind of forward: sequences, cached tokens of each, tokens fed for each."""

    batch: int
    context: int
    size: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """One kind of forward, measured: medians in seconds.

    Attributes:
        cpu_seconds: likewise in processor time, which other jobs on the machine disturb less; None
            on an accelerator.
        roofline: by the roofline, matrix products and attention.
        matmuls, attention: of `seconds`, what matrix products and attention took; None where it was
            not measured.
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
        """What of `seconds` is neither."""
        return (
            None
            if self.matmuls is None or self.attention is None
            else self.seconds - self.matmuls - self.attention
        )


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

    @property
    def contexts(self) -> list[int]:
        """The numbers of cached tokens, the smaller one first."""
        return sorted({one.context for one in self.steps})

    def relative(self, case: Case, processor: bool = False) -> float | None:
        """Return the measured time over that of plain decoding; with `processor`, processor
        time, None on an accelerator.
        """
        steps = {Case(one.batch, one.context, one.size): one for one in self.steps}
        one, plain = steps[case], steps[case._replace(size=1)]
        if not processor:
            return one.seconds / plain.seconds
        return (
            one.cpu_seconds / plain.cpu_seconds if one.cpu_seconds and plain.cpu_seconds else None
        )

    def split(self) -> list[StepCost]:
        """Return the forwards of figure 3."""
        return [one for one in self.steps if one.batch == SPLIT_BATCH]


@dataclass(frozen=True, slots=True)
class Study:
    """Replays of several sets of recorded answers.

    Attributes:
        answers, tokens: of each set.
    """

    complete: bool
    answers: dict[str, int]
    tokens: dict[str, int]
    rows: tuple[ReplayRow, ...]

    @property
    def sizes(self) -> list[int]:
        """The s_q that were replayed, 1 for plain decoding among them, where anything was."""
        return sorted({1, *(row.result.max_nodes + 1 for row in self.rows)}) if self.rows else []

    @property
    def methods(self) -> list[str]:
        """Names of the methods that were replayed."""
        return list(dict.fromkeys(row.drafter for row in self.rows))

    @property
    def fusions(self) -> list[str]:
        """The method with all sources there are, and the same with the paper's weights."""
        main = BOTH if BOTH in self.methods else REQUEST
        return [main, published(main)]

    def result(self, method: str, size: int, name: str | None = None) -> ReplayResult | None:
        """Return the counts of a method at s_q = `size`, on one set (None = on all); None if it
        was not replayed.
        """
        found = [
            row.result
            for row in self.rows
            if (row.drafter, row.result.max_nodes) == (method, size - 1)
            and name in (None, row.traces)
        ]
        if not found:
            return None
        sums = (
            sum(getattr(one, what) for one in found)
            for what in ("tokens", "steps", "drafted", "accepted", "seconds")
        )
        return ReplayResult(size - 1, found[0].batch_size, *sums)

    def rate(self, method: str, size: int, name: str | None = None) -> float | None:
        """Return tokens per step likewise; plain decoding has 1."""
        if size == 1:
            return 1.0 if method in self.methods else None
        found = self.result(method, size, name)
        return None if found is None else found.tokens_per_step


NOTHING = Study(True, {}, {}, ())


@dataclass(frozen=True, slots=True)
class VocabularyStudy:
    """Figure 5: the same answers and the same datastore in several vocabularies.

    Attributes:
        sizes: tokens of each vocabulary, by the name of its set in `study`. characters: of the
            answers.
        store_tokens: of the store in each vocabulary; 0 = there is none.
    """

    study: Study
    sizes: dict[str, int]
    characters: int
    store_tokens: dict[str, int]

    @property
    def complete(self) -> bool:
        """Whether it was not interrupted."""
        return self.study.complete

    def characters_per_token(self, name: str) -> float:
        """Return the characters of a token of the answers, in one of the vocabularies."""
        return self.characters / max(1, self.study.tokens[name])

    def characters_per_step(self, method: str, size: int, name: str) -> float | None:
        """Return the characters said per step by a method, in one of the vocabularies."""
        rate = self.study.rate(method, size, name)
        return None if rate is None else rate * self.characters_per_token(name)


@dataclass(frozen=True, slots=True)
class SssdResult:
    """What was measured; None or missing is what came after an interruption.

    Attributes:
        store, store_tokens: the datastore; None and 0 = there was none.
        timed: runs of figure 2 by the clock, one per batch size. replays: figures 2 and 4. costs:
            figures 2 and 3, table 1.
        temperatures: section 4.2. vocabularies: figure 5.
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
        """The runs there were."""
        return list(self.timed)

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        there = None not in (self.replays, self.costs, self.temperatures, self.vocabularies)
        return there and len(self.timed) == len(BATCHES) and self.unbroken

    @property
    def unbroken(self) -> bool:
        """Whether nothing so far was interrupted."""
        measured = (*self.timed, self.replays, self.costs, self.temperatures, self.vocabularies)
        return all(one.complete for one in measured if one is not None)
