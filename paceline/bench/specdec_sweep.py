"""The drafters that the SpecDec++ paper compares, measured per set of prompts (Huang et al. 2024, sections 2.1 and 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from paceline.bench.paper import Part
from paceline.bench.paper_lines import PLAIN
from paceline.bench.result import BenchResult, Figures
from paceline.bench.run import Maker
from paceline.bench.specdec_costs import Point
from paceline.drafters.draft_model import DraftModel, DraftModelOptions
from paceline.drafters.length_rules import OracleRule
from paceline.llm import LLM
from paceline.sequence import SamplingParams

LENGTHS = (2, 3, 4, 5, 6, 8, 10, 12, 14)  # K of figure 4; the paper has the even ones
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # h of the first head in figure 4
PAPER_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of further heads, and of what is timed
_MOST = 20  # tokens that the head may draft, and so may the other rules
_BOUNDS = {"product": (0.1, 0.3, 0.5, 0.7, 0.9), "confidence": (0.2, 0.4, 0.6, 0.8, 0.9), "entropy": (0.3, 0.4, 0.5, 0.6, 0.8)}
FIXED, HEURISTIC, HEAD = "fixed K", "heuristic", "SpecDec++"
PUBLISHED, FROM_ONE = "SpecDec++, published rule", "SpecDec++, min 1"
_VARIANTS = {PUBLISHED: "newest=false", FROM_ONE: "min=1"}  # what they change in the drafter
ORACLE, AUTO = "oracle", "auto"


@dataclass(frozen=True, slots=True)
class Family:
    """Rules that differ in one number, which is the label of each method."""

    name: str
    methods: dict[str, str]


def fixed_length(length: int) -> str:
    """Drafts of exactly so many tokens."""
    return f"draft_model:length={length}"


def head_spec(head: str | None, threshold: float | str) -> str:
    """SpecDec++ with a head (None: the one that is shipped) and a threshold."""
    return f"specdec_pp:threshold={threshold}" if head is None else f"specdec_pp:head={head},threshold={threshold}"


def families(heads: Seq[str]) -> list[Family]:
    """The rules of figure 4: fixed lengths, the draft model's own probabilities, and heads.

    Beside the first head as it is by default stand the rule as published, which knows nothing of the newest token, and one that
    may draft a single token.
    """
    found = [
        Family(FIXED, {f"K = {length}": fixed_length(length) for length in LENGTHS}),
        Family(HEURISTIC, {HEURISTIC: "draft_model:rule=heuristic"}),
    ]
    for rule, bounds in _BOUNDS.items():
        specs = {f"{rule} {bound}": f"draft_model:length={_MOST},rule={rule},stop_below={bound}" for bound in bounds}
        found.append(Family(rule, specs))
    first = heads[0] if heads else None
    found.append(Family(HEAD, {f"h = {threshold}": head_spec(first, threshold) for threshold in THRESHOLDS}))
    for name, change in _VARIANTS.items():
        specs = {f"{change}, h = {threshold}": f"{head_spec(first, threshold)},{change}" for threshold in PAPER_THRESHOLDS}
        found.append(Family(name, specs))
    for head in heads[1:]:
        specs = {f"{head_label(head)}, h = {threshold}": head_spec(head, threshold) for threshold in PAPER_THRESHOLDS}
        found.append(Family(head_label(head), specs))
    return found


def head_label(folder: str) -> str:
    """What a further head is called."""
    return f"head {folder}"


def timed_methods(heads: Seq[str], has_curve: bool) -> list[str]:
    """What tables 1 and 2 take the time of; the thresholds are the paper's.

    Args:
        has_curve: the first head's card can tell which threshold is best.
    """
    first = heads[0] if heads else None
    thresholds: tuple[float | str, ...] = (*PAPER_THRESHOLDS, *([AUTO] if has_curve else []))
    return [PLAIN, *map(fixed_length, LENGTHS), *(head_spec(first, threshold) for threshold in thresholds)]


class Answers(Mapping[tuple[int, ...], list[int]]):
    """What the target answers to each prompt, found out when it is first asked for."""

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params
        self._known: dict[tuple[int, ...], list[int]] = {}

    def __getitem__(self, prompt: tuple[int, ...]) -> list[int]:
        if prompt not in self._known:
            self._known[prompt] = self._llm.generate([list(prompt)], self._params)[0].token_ids
        return self._known[prompt]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def oracle(answers: Mapping[tuple[int, ...], Seq[int]]) -> dict[str, Maker]:
    """The drafter of section 2.1, which knows what the target will answer."""
    return {ORACLE: lambda draft: DraftModel(DraftModelOptions(lookup=False), draft, OracleRule(answers))}


@dataclass(frozen=True, slots=True)
class Sweep:
    """One run with its figures per set of prompts besides."""

    part: Part
    sets: dict[str, tuple[Figures, ...]]

    @staticmethod
    def of(label: str, result: BenchResult) -> Sweep:
        """From a finished, or interrupted, run."""
        names = result.categories
        sets = {name: tuple(result.figures(name)) for name in names} if len(names) > 1 else {}
        return Sweep(Part.of(label, result), sets)

    @staticmethod
    def read(values: dict[str, Any]) -> Sweep:
        """From its JSON form."""
        sets = {name: tuple(Figures(**one) for one in figures) for name, figures in values["sets"].items()}
        return Sweep(Part.read(values["part"]), sets)

    def of_set(self, name: str | None) -> Part:
        """The figures over one set, none where it has no answer; None = over all prompts."""
        return self.part if name is None else dataclasses.replace(self.part, figures=self.sets.get(name, ()))

    def points(self, methods: Iterable[str], name: str | None = None) -> list[Point]:
        """The rates of those methods that were measured, in their order, over one set or all prompts."""
        part = self.of_set(name)
        return [point for method in methods if (point := point_of(part, method)) is not None]


def point_of(part: Part, method: str) -> Point | None:
    """The rates of a method; None if it did not run."""
    figures = part.method(method)
    if figures is None or figures.verification_rate is None or figures.discard_rate is None:
        return None
    return Point(method, figures.discard_rate, figures.verification_rate)
