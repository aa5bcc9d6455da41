"""Best against best: which fixed K and which threshold win, and how fronts compare (Huang et al.
2024, table 1, figure 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.bench.papers.part import PLAIN, BenchPart, ratio
from paceline.bench.papers.specdec_pp.costs import (
    cheapest,
    discard_at,
    pareto_front,
    verification_at,
)
from paceline.bench.papers.specdec_pp.result import RulePoint, Sweep
from paceline.bench.papers.specdec_pp.rules import (
    AUTO,
    FIXED,
    HEAD,
    families,
    head_spec,
    methods_of,
    rivals,
)
from paceline.drafters.specdec_pp.card import latency

PAPER_RATIO = 0.112 / 0.0234  # target over draft forward of the paper's pair
ALL = "all"


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and its tokens per second."""

    label: str
    rate: float


@dataclass(frozen=True, slots=True)
class Pick:
    """A column of table 1: plain decoding in tokens/s, the best fixed K, the best threshold, and
    `threshold=auto`.

    Attributes:
        cpu_gain: of the threshold over the fixed K, in processor time.
    """

    name: str
    plain: float | None
    fixed: Choice | None
    head: Choice | None
    auto: Choice | None = None
    cpu_gain: float | None = None

    def gain(self, choice: Choice | None) -> float | None:
        """Return the speed of a choice over that of the best fixed K."""
        return choice.rate / self.fixed.rate if choice and self.fixed else None

    def speedup(self, choice: Choice | None) -> float | None:
        """Return the speed of a choice over that of plain decoding."""
        return choice.rate / self.plain if choice and self.plain else None


def measured_picks(sweep: Sweep, heads: Sequence[str]) -> list[Pick]:
    """Return table 1 by the clock: per set of prompts, then over all."""
    found = []
    for name in (*sweep.sets, None):
        part = sweep.of_set(name)
        fixed, head = (fastest(part, methods) for methods in rivals(heads))
        plain = part.method(PLAIN)
        methods = {"fixed": fixed, "head": head, "auto": head_spec(heads, AUTO)}
        choices = {
            kind: _choice(part, method, methods_of(heads)) for kind, method in methods.items()
        }
        gain = ratio(part, head, fixed, "cpu_speedup") if fixed else None
        found.append(
            Pick(name or ALL, plain.tokens_per_second if plain else None, **choices, cpu_gain=gain)
        )
    return found


def expected_picks(
    sweep: Sweep, heads: Sequence[str], draft: float, target: float, plain: float | None
) -> list[Pick]:
    """Return table 1 as the paper has it, by equation 2.3.

    Args:
        draft, target: seconds per forward. plain: seconds per forward of the target alone.
    """
    found = []
    for name in (*sweep.sets, None):
        best = [cheapest(sweep.points(methods, name), draft, target) for methods in rivals(heads)]
        fixed, head = (
            Choice(methods_of(heads)[one.method], 1 / latency(draft, target, one)) if one else None
            for one in best
        )
        found.append(Pick(name or ALL, 1 / plain if plain else None, fixed, head))
    return found


def fastest(part: BenchPart, methods: Iterable[str]) -> str | None:
    """Return the method with most tokens per second; None if none was timed."""
    rates = {figures.method: figures.tokens_per_second or 0.0 for figures in part.figures}
    return max(
        (method for method in methods if rates.get(method)),
        key=lambda method: rates[method],
        default=None,
    )


@dataclass(frozen=True, slots=True)
class Against:
    """The head's front against another one's.

    Attributes:
        points: on the other front; within: of them, where the head's front has that discard rate;
            below: of these, where the head needs fewer target forwards; above: where it needs more.
        forwards: mean ratio, head over rival, of target forwards at equal discards; discards: of
            discards at equal forwards.
        gain: the rival's least latency over the head's, for a pair like the paper's.
    """

    rival: str
    name: str
    points: int
    within: int
    below: int
    above: int
    forwards: float | None
    discards: float | None
    gain: float | None


def against(
    rival: str, name: str, theirs: Sequence[RulePoint], mine: Sequence[RulePoint]
) -> Against:
    """Compare the fronts of two lists of points."""
    front, head = pareto_front(theirs), pareto_front(mine)
    forwards = [
        (at, one.verification_rate)
        for one in front
        if (at := verification_at(head, one.discard_rate)) is not None
    ]
    discards = [
        (at, one.discard_rate)
        for one in front
        if (at := discard_at(head, one.verification_rate)) is not None
    ]
    costs = [
        one and latency(1.0, PAPER_RATIO, one)
        for one in (cheapest(points, 1.0, PAPER_RATIO) for points in (front, head))
    ]
    return Against(
        rival,
        name,
        len(front),
        len(forwards),
        sum(own < other for own, other in forwards),
        sum(own > other for own, other in forwards),
        _mean_ratio(forwards),
        _mean_ratio(discards),
        costs[0] / costs[1] if costs[0] and costs[1] else None,
    )


def fronts(sweep: Sweep, heads: Sequence[str]) -> list[Against]:
    """Hold the first head against every other rule over all prompts, then against fixed K per
    set.
    """
    rules = families(heads)
    rows = [
        *((rival, None) for rival in rules if rival != HEAD),
        *((FIXED, name) for name in sweep.sets),
    ]
    return [
        against(
            rival, name or ALL, *(sweep.points(rules[one].values(), name) for one in (rival, HEAD))
        )
        for rival, name in rows
    ]


def _mean_ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    ratios = [own / other for own, other in pairs if other > 0]
    return sum(ratios) / len(ratios) if ratios else None


def _choice(part: BenchPart, method: str | None, named: dict[str, str]) -> Choice | None:
    figures = part.method(method)
    if method is None or figures is None or not figures.tokens_per_second:
        return None
    return Choice(named[method], figures.tokens_per_second)
