"""State in words how fast the drafters of a run are, relative to plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.bench_settings import DISTURBED_RATIO, OPPOSITE_RATIO, STEADY_REPEATS
from paceline.bench.result import BenchResult
from paceline.bench.settings import PLAIN as TRANSFORMERS

NONE = "none"  # the drafter for plain decoding
_PLAIN = f"plain decoding ({NONE})"


@dataclass(frozen=True, slots=True)
class _RelativeSpeed:
    """A drafter's speed relative to plain decoding, in elapsed time and in CPU time.

    Attributes:
        method: Drafter spec.
        elapsed: Ratio of tokens per second.
        cpu: Ratio of tokens per second of CPU time.
        tokens_per_forward: Tokens per request and forward pass; None if not known.
    """

    method: str
    elapsed: float
    cpu: float
    tokens_per_forward: float | None

    @property
    def is_faster(self) -> bool:
        """Return whether the drafter saved time.

        Without accepted drafts, a drafter saves no time, so a higher speed is chance.
        """
        accepted = self.tokens_per_forward is None or round(self.tokens_per_forward, 2) > 1
        return self.elapsed >= 1 and accepted

    @property
    def difference(self) -> float:
        """Return the larger of the two ratios divided by the smaller."""
        return max(self.elapsed, self.cpu) / min(self.elapsed, self.cpu)

    @property
    def disturbed(self) -> bool:
        """Return whether the two ratios contradict each other."""
        opposite = (self.elapsed - 1) * (self.cpu - 1) < 0
        return self.difference > (OPPOSITE_RATIO if opposite else DISTURBED_RATIO)

    def __str__(self) -> str:
        return f"{self.method} ({self.elapsed:.2f}x)"


def verdict(result: BenchResult) -> list[str]:
    """Return a note that compares the drafters with plain decoding, if both ran."""
    drafters = _comparisons(result)
    if not drafters:
        return []
    disturbed = [drafter for drafter in drafters if drafter.disturbed]
    words = _disturbed(disturbed, result.config.repeats) if disturbed else _ranking(drafters)
    return [words + _small_batch(result)]


def _comparisons(result: BenchResult) -> list[_RelativeSpeed]:
    """Compare every drafter with plain decoding, if plain decoding ran."""
    figures = {
        row.method: row
        for row in result.figures()
        if row.tokens_per_second and not row.method.startswith(TRANSFORMERS)
    }
    plain = figures.pop(NONE, None)
    if plain is None:
        return []
    drafters = []
    for row in figures.values():
        elapsed = (row.tokens_per_second or 0) / (plain.tokens_per_second or 1)
        cpu = (row.cpu_speedup or 0) / (plain.cpu_speedup or 1)
        # Processor time says little about the speed of an accelerator.
        known = cpu and result.environment.accelerator is None
        cpu = cpu if known else elapsed
        drafters.append(_RelativeSpeed(row.method, elapsed, cpu, row.tokens_per_forward))
    return drafters


def _disturbed(drafters: list[_RelativeSpeed], repeats: int) -> str:
    worst = max(drafters, key=lambda drafter: drafter.difference)
    option = "" if repeats >= STEADY_REPEATS else f" with --repeats {STEADY_REPEATS}"
    return (
        f"No verdict: other programs disturbed the times. {worst.method} is {worst.elapsed:.2f}x"
        f" as fast as {_PLAIN} in elapsed time, but {worst.cpu:.2f}x in CPU time. Repeat the run"
        f" on an idle machine{option}."
    )


def _ranking(drafters: list[_RelativeSpeed]) -> str:
    slower = ", ".join(str(drafter) for drafter in drafters if drafter.elapsed < 1)
    others = f" Slower than plain decoding: {slower}." if slower else ""
    faster = [drafter for drafter in drafters if drafter.is_faster]
    if not faster:
        return f"No drafter is faster than {_PLAIN} here.{others}"
    best = max(faster, key=lambda drafter: drafter.elapsed)
    name = best.method if len(drafters) == 1 else f"The fastest drafter, {best.method},"
    return f"{name} is {best.elapsed:.2f}x as fast as {_PLAIN} here.{others}"


def _small_batch(result: BenchResult) -> str:
    requested = result.config.batch
    if result.answered_together >= requested:
        return ""
    return (
        f" The batch is {result.answered_together} instead of {requested}, because there are fewer"
        f" prompts; use at least {requested} prompts."
    )
