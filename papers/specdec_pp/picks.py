"""Compare the best fixed K with the best threshold, and their Pareto fronts.

See Huang et al. 2024, table 1 and figure 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.drafters.specdec_pp.card import latency
from papers.part import PLAIN, BenchPart, ratio
from papers.specdec_pp.costs import (
    cheapest,
    discard_at,
    pareto_front,
    verification_at,
)
from papers.specdec_pp.result import RulePoint, Sweep
from papers.specdec_pp.rules import (
    AUTO,
    FIXED,
    HEAD,
    families,
    head_spec,
    methods_of,
    rivals,
)

PAPER_RATIO = 0.112 / 0.0234  # target / draft forward time of the paper's pair
ALL = "all"


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and its tokens per second."""

    label: str
    rate: float


@dataclass(frozen=True, slots=True)
class Pick:
    """A column of table 1, with the best settings on a set of prompts.

    Attributes:
        name: Name of the set of prompts.
        plain: Tokens per second of plain decoding.
        fixed: The best fixed draft length K.
        head: The best threshold of the head.
        auto: The setting `threshold=auto`.
        cpu_gain: Speed of the best threshold divided by that of the best fixed K, both in processor
            time.
    """

    name: str
    plain: float | None
    fixed: Choice | None
    head: Choice | None
    auto: Choice | None = None
    cpu_gain: float | None = None

    def gain(self, choice: Choice | None) -> float | None:
        """Return the speed of a setting relative to the best fixed K."""
        return choice.rate / self.fixed.rate if choice and self.fixed else None

    def speedup(self, choice: Choice | None) -> float | None:
        """Return the speed of a setting relative to plain decoding."""
        return choice.rate / self.plain if choice and self.plain else None


def measured_picks(sweep: Sweep, heads: Sequence[str]) -> list[Pick]:
    """Return table 1 with measured speeds, for each set of prompts and for all sets."""
    picks = []
    for name in (*sweep.sets, None):
        part = sweep.of_set(name)
        fixed, head = (fastest(part, methods) for methods in rivals(heads))
        plain = part.method(PLAIN)
        methods = {"fixed": fixed, "head": head, "auto": head_spec(heads, AUTO)}
        choices = {
            kind: _choice(part, method, methods_of(heads)) for kind, method in methods.items()
        }
        gain = ratio(part, head, fixed, "cpu_speedup") if fixed else None
        picks.append(
            Pick(name or ALL, plain.tokens_per_second if plain else None, **choices, cpu_gain=gain)
        )
    return picks


def expected_picks(
    sweep: Sweep, heads: Sequence[str], draft: float, target: float, plain: float | None
) -> list[Pick]:
    """Return table 1 as computed by equation 2.3, as in the paper.

    Args:
        sweep: Run with the rates of all rules.
        heads: Folders of the heads.
        draft, target: Duration of each model's forward pass, in seconds.
        plain: Duration of the target's forward pass in plain decoding, in seconds.
    """
    picks = []
    for name in (*sweep.sets, None):
        best = [cheapest(sweep.points(methods, name), draft, target) for methods in rivals(heads)]
        fixed, head = (
            Choice(methods_of(heads)[point.method], 1 / latency(draft, target, point))
            if point
            else None
            for point in best
        )
        picks.append(Pick(name or ALL, 1 / plain if plain else None, fixed, head))
    return picks


def fastest(part: BenchPart, methods: Iterable[str]) -> str | None:
    """Return the method with the most tokens per second; None if none was timed."""
    rates = {figures.method: figures.tokens_per_second or 0.0 for figures in part.figures}
    return max(
        (method for method in methods if rates.get(method)),
        key=lambda method: rates[method],
        default=None,
    )


@dataclass(frozen=True, slots=True)
class Against:
    """The comparison of the head's Pareto front with that of another rule.

    Attributes:
        rival: Name of the other rule.
        name: Name of the set of prompts.
        points: Number of points of the other rule's front.
        within: Number of these points whose discard rate lies within the range of the head's front.
        below: Number of points in this range at which the head needs fewer target forward passes.
        above: Number of points in this range at which the head needs more target forward passes.
        forwards: Mean ratio of the head's target forward passes to the other rule's, at equal
            discard rates.
        discards: Mean ratio of the head's discarded tokens to the other rule's, at equal numbers of
            target forward passes.
        gain: Ratio of the other rule's lowest latency to the head's, with the costs of the paper's
            models.
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
    rival: str, name: str, rival_points: Sequence[RulePoint], head_points: Sequence[RulePoint]
) -> Against:
    """Compare the Pareto fronts of a rule and of the head, given all their points."""
    front, head = pareto_front(rival_points), pareto_front(head_points)
    forwards = [
        (head_rate, point.verification_rate)
        for point in front
        if (head_rate := verification_at(head, point.discard_rate)) is not None
    ]
    discards = [
        (head_rate, point.discard_rate)
        for point in front
        if (head_rate := discard_at(head, point.verification_rate)) is not None
    ]
    costs = [
        point and latency(1.0, PAPER_RATIO, point)
        for point in (cheapest(points, 1.0, PAPER_RATIO) for points in (front, head))
    ]
    return Against(
        rival,
        name,
        len(front),
        len(forwards),
        sum(head_value < rival_value for head_value, rival_value in forwards),
        sum(head_value > rival_value for head_value, rival_value in forwards),
        _mean_ratio(forwards),
        _mean_ratio(discards),
        costs[0] / costs[1] if costs[0] and costs[1] else None,
    )


def fronts(sweep: Sweep, heads: Sequence[str]) -> list[Against]:
    """Compare the first head with every other rule, and with fixed K on each set."""
    rules = families(heads)
    rows = [
        *((rival, None) for rival in rules if rival != HEAD),
        *((FIXED, name) for name in sweep.sets),
    ]
    return [
        against(
            rival,
            name or ALL,
            *(sweep.points(rules[rule].values(), name) for rule in (rival, HEAD)),
        )
        for rival, name in rows
    ]


def _mean_ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    ratios = [first / second for first, second in pairs if second > 0]
    return sum(ratios) / len(ratios) if ratios else None


def _choice(part: BenchPart, method: str | None, named: dict[str, str]) -> Choice | None:
    figures = part.method(method)
    if method is None or figures is None or not figures.tokens_per_second:
        return None
    return Choice(named[method], figures.tokens_per_second)
