"""Store the results for the Ouroboros paper (Zhao et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from papers.order_settings import CONSECUTIVE
from papers.orders import Order, scaled
from papers.ouroboros.options import OuroborosConfig
from papers.part import BenchPart

LONGEST = 8  # maximum length of the counted substrings


@dataclass(frozen=True, slots=True)
class Matches:
    """Counts of matching tokens, summed over a task's drafts of one length.

    Attributes:
        task: Name of the task.
        verifications: Number of verified drafts.
        prefix: Number of accepted tokens, called len(LCP) in the paper.
        equal: Number of draft tokens that equal the target's prediction at their position, called
            #Match-1 in the paper.
        rejected: Number of drafts with a rejected token.
        discarded: Number of tokens after the first rejected token.
        substrings: For each length k from 1, how often k consecutive discarded tokens equal the
            target's predictions (#Match-k, equation 7).
    """

    task: str
    verifications: int
    prefix: int
    equal: int
    rejected: int
    discarded: int
    substrings: tuple[int, ...]

    @staticmethod
    def of(task: str, drafts: Iterable[Sequence[bool]]) -> Matches:
        """Count the matching tokens of drafts; each draft is a result of `own_tokens`."""
        drafts = list(drafts)
        prefixes = [
            next((index for index, matches in enumerate(draft) if not matches), len(draft))
            for draft in drafts
        ]
        discarded = [
            draft[prefix + 1 :]
            for draft, prefix in zip(drafts, prefixes, strict=True)
            if prefix < len(draft)
        ]
        return Matches(
            task,
            len(drafts),
            sum(prefixes),
            sum(map(sum, drafts)),
            len(discarded),
            sum(map(len, discarded)),
            tuple(
                sum(_runs(draft, length) for draft in discarded) for length in range(1, LONGEST + 1)
            ),
        )

    @staticmethod
    def total(tasks: Sequence[Matches]) -> Matches:
        """Return the sums over all tasks."""
        counts = ("verifications", "prefix", "equal", "rejected", "discarded")
        sums = {name: sum(getattr(task, name) for task in tasks) for name in counts}
        return Matches(
            "all",
            **sums,
            substrings=tuple(map(sum, zip(*(task.substrings for task in tasks), strict=True))),
        )

    def per_verification(self) -> tuple[float, float]:
        """Return the mean numbers of accepted and of matching tokens per draft (table 1)."""
        return self.prefix / self.verifications, self.equal / self.verifications

    def per_rejection(self) -> list[float]:
        """Return the mean #Match-k of drafts with a rejected token, for each k (figure 3).

        The list is empty if no draft had a rejected token.
        """
        return [count / self.rejected for count in self.substrings] if self.rejected else []


@dataclass(frozen=True, slots=True)
class MatchStudy:
    """Counts for each task; tasks without a full-length draft are left out."""

    gamma: int
    prompts: int
    complete: bool
    tasks: tuple[Matches, ...]


@dataclass(frozen=True, slots=True)
class OuroborosResult:
    """Results for the paper; fields that were not measured are empty.

    Attributes:
        config: Configuration of the measurement.
        methods: Run for tables 2 and 3 and for figure 5.
        matches: Counts for table 1 and figure 3.
        size: Number of prompts per task for table 4.
        orders: Runs for table 4, one per order of the prompts.
    """

    title: ClassVar[str] = "Ouroboros (Zhao et al., 2024)"

    config: OuroborosConfig
    methods: BenchPart
    matches: MatchStudy | None = None
    size: int = 1
    orders: tuple[Order, ...] = ()

    @property
    def parts(self) -> list[BenchPart]:
        """Return the benchmark runs that were measured."""
        return [self.methods, *(order.part for order in self.orders)]

    @property
    def complete(self) -> bool:
        """Return whether everything was measured without interruption."""
        counted = self.matches is not None and self.matches.complete
        return self.methods.complete and counted and len(self.orders) == len(orders_of(self.size))

    def order(self, consecutive: int | None) -> BenchPart | None:
        """Return the run with one of the paper's numbers of consecutive prompts.

        If `consecutive` is None, return the run in random order.
        """
        number = None if consecutive is None else scaled(consecutive, self.size)
        return next((order.part for order in self.orders if order.consecutive == number), None)


def orders_of(size: int) -> list[int | None]:
    """Return the orders to measure: random (None), and numbers of consecutive prompts."""
    return [None, *dict.fromkeys(scaled(number, size) for number in CONSECUTIVE)]


def _runs(draft: Sequence[bool], length: int) -> int:
    """Count how often `length` consecutive tokens match."""
    return sum(all(draft[start : start + length]) for start in range(len(draft) - length + 1))
