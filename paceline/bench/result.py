"""What a run leaves: the timed calls with their answers' counts, and the figures drawn from
them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.bench.environment import Environment
from paceline.bench.settings import PLAIN, BenchConfig
from paceline.core.metrics import Stats, Timing


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """What the engine counted for one answer.

    Attributes:
        target_forwards, prefill_forwards, draft_forwards, drafted_tokens, accepted_tokens: as in
            `Stats`.
        decode_fed: query tokens of all forwards after the prefill.
        trees: forwards that verified at least one node.
    """

    target_forwards: int
    prefill_forwards: int
    draft_forwards: int
    drafted_tokens: int
    accepted_tokens: int
    decode_fed: int
    trees: int

    @staticmethod
    def of(stats: Stats) -> AnswerCounts:
        """From a completion's stats. While decoding one pending token is fed per forward, so the
        others are nodes.
        """
        nodes = [fed - 1 for fed in stats.fed[stats.prefill_forwards :]]
        rode_along = stats.drafted_tokens > sum(nodes)  # a tree on the last prefill chunk
        return AnswerCounts(
            stats.target_forwards,
            stats.prefill_forwards,
            stats.draft_forwards,
            stats.drafted_tokens,
            stats.accepted_tokens,
            sum(stats.fed[stats.prefill_forwards :]),
            sum(n > 0 for n in nodes) + rode_along,
        )


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One answer. `equal`: same tokens as the reference method's; None where the two need not be
    equal.
    """

    prompt: str
    category: str
    prompt_tokens: int
    new_tokens: int
    equal: bool | None
    counts: AnswerCounts | None


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One timed call: a prompt, or a batch of prompts, under one method.

    Attributes:
        unit: which prompt or batch, counted from 0. repeat: which pass.
        seconds: wall clock; cpu_seconds: processor time of the process.
        timing: engine time, in seconds; None where it is not known.
        peak_memory: accelerator memory allocated on top of what was allocated before, in bytes.
    """

    method: str
    unit: int
    repeat: int
    seconds: float
    cpu_seconds: float
    timing: Timing | None
    peak_memory: int | None
    rows: tuple[AnswerRow, ...]

    @property
    def new_tokens(self) -> int:
        """Tokens of all its answers."""
        return sum(row.new_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Whether a drafter's answers have the bits of plain decoding in any batch, and why or why
    not (`LLM.invariance`).
    """

    on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer first differs from the reference, and how near the target's decision was
    there.

    Attributes:
        position: of the first differing token in the answer.
        expected, got: the reference's token and this method's; None beyond the end of an answer.
        top_logit, top_gap: the target's largest logit there, and how far the second lies below it,
            from a fresh forward.
        choice_gap: distance between the logits of `expected` and `got`.
    """

    method: str
    prompt: str
    position: int
    expected: int | None
    got: int | None
    top_logit: float
    top_gap: float
    choice_gap: float | None


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """One method's figures; None where a method does not know or nothing of that kind happened.

    Attributes:
        tokens_per_second: all new tokens / all seconds.
        speedup: ratio of that to the baseline's. speedup_median: median over prompts (batches) of
            the same ratio.
        cpu_speedup: as `speedup`, with processor time for wall clock.
        tokens_per_forward: sum(new tokens - 1) / sum(forwards after the prefill); plain decoding is
            exactly 1.
        accepted_per_draft: accepted tokens / trees with nodes. acceptance_rate: accepted / drafted
            tokens.
        fed_per_step: mean query tokens of the forwards after the prefill.
        target_share, draft_share, overhead_share: of the steps' time, in target forwards, draft
            forwards, and neither.
        equal, compared: answers equal to the reference's, of those compared.
        draft_forwards: of the draft model, per new token.
        verification_rate: target forwards per new token, the prefill included; discard_rate:
            drafted tokens that were not kept per new token (SpecDec++, section 2).
        batch_invariant: whether the bits of plain decoding were guaranteed.
    """

    method: str
    answers: int
    new_tokens: int
    seconds: float | None
    tokens_per_second: float | None
    speedup: float | None
    speedup_median: float | None
    cpu_speedup: float | None
    tokens_per_forward: float | None
    accepted_per_draft: float | None
    acceptance_rate: float | None
    fed_per_step: float | None
    target_share: float | None
    draft_share: float | None
    overhead_share: float | None
    equal: int
    compared: int
    peak_memory: int | None
    draft_forwards: float | None = (
        None  # files of earlier versions have neither this nor what follows
    )
    verification_rate: float | None = None
    discard_rate: float | None = None
    batch_invariant: bool | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A finished, or interrupted, run.

    Attributes:
        complete: false if it was interrupted; then every method has the same prompts all the same.
        target, draft: names of the models, their cost-scale labels included.
        dtype: of the target. methods: in the order asked for.
        baseline: what speed-ups are relative to. reference: whose tokens others must equal; None if
            there is no such method.
        skipped: methods that could not run, and why.
        cut_prompts: how many of the prompts were too long for the context beside an answer, and
            were cut.
        guarantees: by the drafter's method; none for methods of transformers.
    """

    config: BenchConfig
    environment: Environment
    complete: bool
    target: str
    draft: str | None
    dtype: str
    methods: tuple[str, ...]
    baseline: str
    reference: str | None
    skipped: dict[str, str]
    calls: tuple[TimedCall, ...]
    divergences: tuple[Divergence, ...]
    cut_prompts: int = 0  # files of earlier versions have neither this nor what follows
    guarantees: dict[str, Guarantee] = field(default_factory=dict)

    @property
    def categories(self) -> list[str]:
        """Categories of the prompts, in their order."""
        return list(dict.fromkeys(row.category for call in self.calls for row in call.rows))

    def figures(self, category: str | None = None) -> list[MethodFigures]:
        """The methods' figures, over all prompts or one category. Times of mixed batches belong
        to no category.
        """
        return [self._figures(method, category) for method in self.methods]

    def unit_speedups(self, method: str, category: str | None = None) -> list[float]:
        """Per prompt (batch) that method's tokens per second over the baseline's, repeats added
        up.
        """
        mine, base = (self._unit_rates(name, category) for name in (method, self.baseline))
        return [mine[unit] / base[unit] for unit in mine if base.get(unit)]

    def _unit_rates(self, method: str, category: str | None) -> dict[int, float]:
        tokens: dict[int, int] = {}
        seconds: dict[int, float] = {}
        for call in self._calls(method, category):
            tokens[call.unit] = tokens.get(call.unit, 0) + call.new_tokens
            seconds[call.unit] = seconds.get(call.unit, 0.0) + call.seconds
        return {unit: tokens[unit] / seconds[unit] for unit in tokens}

    def _calls(self, method: str, category: str | None) -> list[TimedCall]:
        """The calls of a method, all of whose prompts are of `category`."""
        mine = [call for call in self.calls if call.method == method]
        return [
            call
            for call in mine
            if category is None or all(row.category == category for row in call.rows)
        ]

    def _rate(
        self, method: str, category: str | None, seconds: Callable[[TimedCall], float]
    ) -> float | None:
        calls = self._calls(method, category)
        rows = sum(
            row.category == category
            for call in self.calls
            if call.method == method
            for row in call.rows
        )
        if not calls or (category is not None and rows != sum(len(call.rows) for call in calls)):
            return None
        return _ratio(sum(call.new_tokens for call in calls), sum(map(seconds, calls)))

    def _figures(self, method: str, category: str | None) -> MethodFigures:
        mine = [call for call in self.calls if call.method == method]
        rows = [row for call in mine for row in call.rows if category in (None, row.category)]
        wall, base_wall = (
            self._rate(name, category, lambda call: call.seconds)
            for name in (method, self.baseline)
        )
        cpu, base_cpu = (
            self._rate(name, category, lambda call: call.cpu_seconds)
            for name in (method, self.baseline)
        )
        new_tokens = sum(row.new_tokens for row in rows)
        ratios = self.unit_speedups(method, category) if wall else []
        peaks = [call.peak_memory for call in mine if call.peak_memory is not None]
        return MethodFigures(
            method=method,
            answers=len(rows),
            new_tokens=new_tokens,
            seconds=None if not wall else new_tokens / wall,
            tokens_per_second=wall,
            speedup=_ratio(wall, base_wall),
            speedup_median=statistics.median(ratios) if ratios else None,
            cpu_speedup=_ratio(cpu, base_cpu),
            **_draft_figures(rows, method),
            **_shares(self._calls(method, category)),
            equal=sum(row.equal is True for row in rows),
            compared=sum(row.equal is not None for row in rows),
            peak_memory=max(peaks, default=None),
            batch_invariant=self.guarantees[method].on if method in self.guarantees else None,
        )


def _draft_figures(rows: Sequence[AnswerRow], method: str) -> dict[str, float | None]:
    pairs = [(row, row.counts) for row in rows if row.counts is not None]
    forwards = sum(counts.target_forwards - counts.prefill_forwards for _, counts in pairs)
    drafted = sum(counts.drafted_tokens for _, counts in pairs)
    accepted = sum(counts.accepted_tokens for _, counts in pairs)
    per_forward = _ratio(sum(row.new_tokens - 1 for row, _ in pairs), forwards)
    new_tokens = sum(row.new_tokens for row, _ in pairs)
    return {
        "tokens_per_forward": 1.0 if method == PLAIN and rows else per_forward,
        "accepted_per_draft": _ratio(accepted, sum(counts.trees for _, counts in pairs)),
        "acceptance_rate": _ratio(accepted, drafted),
        "fed_per_step": _ratio(sum(counts.decode_fed for _, counts in pairs), forwards),
        "draft_forwards": _ratio(sum(counts.draft_forwards for _, counts in pairs), new_tokens),
        "verification_rate": _ratio(sum(counts.target_forwards for _, counts in pairs), new_tokens),
        "discard_rate": (drafted - accepted) / new_tokens if new_tokens else None,
    }


def _shares(calls: Sequence[TimedCall]) -> dict[str, float | None]:
    total = sum((call.timing for call in calls if call.timing is not None), Timing())
    known = total.step > 0
    return {
        "target_share": total.forward_share if known else None,
        "draft_share": total.draft_share if known else None,
        "overhead_share": total.overhead_share if known else None,
    }


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
