"""Store a run's timed calls, and compute figures from them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.bench.environment import Environment
from paceline.bench.settings import PLAIN, BenchConfig
from paceline.bench.timed_calls import AnswerRow, Divergence, Guarantee, TimedCall
from paceline.core.metrics import Timing


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """The figures of one method; a figure is None if it is unknown or undefined.

    Attributes:
        method: Name of the method.
        answers: Number of answers.
        new_tokens: Number of tokens in the answers.
        seconds: Total wall-clock time of the method's calls, in seconds.
        tokens_per_second: Total number of new tokens / total time in seconds.
        speedup: Ratio of `tokens_per_second` to that of the baseline.
        speedup_median: Median of the speed-ups on the individual prompts or batches.
        cpu_speedup: Like `speedup`, but with processor time instead of wall-clock time.
        tokens_per_forward: sum(new tokens - 1) / sum(forward passes after prefill). For plain
            decoding, this is exactly 1.
        accepted_per_draft: Number of accepted tokens / number of non-empty draft trees.
        acceptance_rate: Number of accepted tokens / number of draft tokens.
        fed_per_step: Mean number of query tokens per request and forward pass, without prefill.
        target_share, draft_share, overhead_share: Shares of the time spent in target forward
            passes, in draft forward passes, and elsewhere.
        equal: Number of answers that match the reference.
        compared: Number of answers compared with the reference.
        peak_memory: Maximum accelerator memory allocated during a call, in bytes.
        draft_forwards: Number of forward passes of the draft model per new token.
        verification_rate: Number of target forward passes per new token, including prefill
            (SpecDec++, section 2).
        discard_rate: Number of rejected draft tokens per new token (SpecDec++, section 2).
        batch_invariant: Whether bit-for-bit agreement with plain decoding was guaranteed.
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
    draft_forwards: float | None = None  # earlier files lack this field and those below
    verification_rate: float | None = None
    discard_rate: float | None = None
    batch_invariant: bool | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result of a finished or interrupted run of a benchmark.

    Attributes:
        config: Configuration of the run.
        environment: The machine and the software versions.
        complete: Whether the run was completed without interruption. Even in an interrupted run,
            all methods have answered the same prompts.
        target, draft: Names of the models. If the benchmark enlarged a model, the name includes its
            size.
        dtype: Data type of the target.
        methods: Names of the methods, in the configured order.
        baseline: Method to which speed-ups are relative.
        reference: Method whose tokens all other methods must match; None if there is no such
            method.
        skipped: Methods that could not run, each with the reason.
        calls: All timed calls.
        divergences: The first difference of each answer that differs from the reference.
        cut_prompts: Number of prompts that were shortened because they did not fit into the
            context.
        guarantees: For each drafter, whether its answers are guaranteed to equal those of plain
            decoding.
        weights: Format of the target's weights; "" means the checkpoint's own weights.
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
    cut_prompts: int = 0  # files of earlier versions lack this field and those below
    guarantees: dict[str, Guarantee] = field(default_factory=dict)
    weights: str = ""

    @property
    def categories(self) -> list[str]:
        """Return the categories of the prompts, in order of first occurrence."""
        return list(dict.fromkeys(row.category for call in self.calls for row in call.rows))

    @property
    def answered_together(self) -> int:
        """Return the size of the largest batch, which too few prompts do not fill."""
        return max((len(call.rows) for call in self.calls), default=self.config.batch)

    @property
    def batch(self) -> str:
        """Return how many prompts are answered together, such as "4 (32 requested)"."""
        requested, together = self.config.batch, self.answered_together
        return f"{together} ({requested} requested)" if together < requested else str(together)

    def figures(self, category: str | None = None) -> list[MethodFigures]:
        """Return the figures for all methods, over all prompts or one category.

        The time of a batch with prompts from several categories counts towards no category.
        """
        return [self._figures(method, category) for method in self.methods]

    def unit_speedups(self, method: str, category: str | None = None) -> list[float]:
        """Return a method's speed-up over the baseline for each prompt or batch."""
        rates, base = (self._unit_rates(name, category) for name in (method, self.baseline))
        return [rates[unit] / base[unit] for unit in rates if base.get(unit)]

    def _unit_rates(self, method: str, category: str | None) -> dict[int, float]:
        tokens: dict[int, int] = {}
        seconds: dict[int, float] = {}
        for call in self._calls(method, category):
            tokens[call.unit] = tokens.get(call.unit, 0) + call.new_tokens
            seconds[call.unit] = seconds.get(call.unit, 0.0) + call.seconds
        return {unit: tokens[unit] / seconds[unit] for unit in tokens}

    def _calls(self, method: str, category: str | None) -> list[TimedCall]:
        """Return a method's calls whose prompts all belong to `category`."""
        calls = [call for call in self.calls if call.method == method]
        return [
            call
            for call in calls
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
        calls = [call for call in self.calls if call.method == method]
        rows = [row for call in calls for row in call.rows if category in (None, row.category)]
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
        peaks = [call.peak_memory for call in calls if call.peak_memory is not None]
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
