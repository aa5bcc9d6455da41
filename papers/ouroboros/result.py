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
    """Sums over the verified drafts of one length in one task.

    Attributes:
        task: Name of the task.
        verifications: Number of verifications.
        prefix: Accepted tokens, len(LCP) in the paper.
        equal: Tokens that equal the target's prediction at their position, #Match-1.
        rejected: Verifications with a wrong token.
        discarded: Tokens after the first wrong token.
        substrings: #Match-k of the discarded tokens by length k, from 1 on (equation 7).
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
        """Count the matches of drafts, given as results of `own_tokens`."""
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
        """Return the mean accepted tokens and the mean matching tokens (table 1)."""
        return self.prefix / self.verifications, self.equal / self.verifications

    def per_rejection(self) -> list[float]:
        """Return the means of #Match-k over verifications with a rejection (figure 3).

        The list is empty if there was no rejection.
        """
        return [count / self.rejected for count in self.substrings] if self.rejected else []


@dataclass(frozen=True, slots=True)
class MatchStudy:
    """Counts for each task; tasks without a full-length draft are omitted."""

    gamma: int
    prompts: int
    complete: bool
    tasks: tuple[Matches, ...]


@dataclass(frozen=True, slots=True)
class OuroborosResult:
    """Results for the paper; fields that an interruption omitted are empty.

    Attributes:
        config: Its configuration.
        methods: Tables 2 and 3, and figure 5.
        matches: Table 1 and figure 3.
        size: Prompts per task of table 4.
        orders: Runs of table 4.
    """

    title: ClassVar[str] = "Ouroboros (Zhao et al., 2024)"

    config: OuroborosConfig
    methods: BenchPart
    matches: MatchStudy | None = None
    size: int = 1
    orders: tuple[Order, ...] = ()

    @property
    def parts(self) -> list[BenchPart]:
        """Return the runs that were measured."""
        return [self.methods, *(order.part for order in self.orders)]

    @property
    def complete(self) -> bool:
        """Return whether everything was measured, without interruption."""
        counted = self.matches is not None and self.matches.complete
        return self.methods.complete and counted and len(self.orders) == len(orders_of(self.size))

    def order(self, consecutive: int | None) -> BenchPart | None:
        """Return the run for one of the paper's numbers of consecutive prompts.

        None means the random order.
        """
        number = None if consecutive is None else scaled(consecutive, self.size)
        return next((order.part for order in self.orders if order.consecutive == number), None)


def orders_of(size: int) -> list[int | None]:
    """Return the measured orders: random (None), then the consecutive numbers."""
    return [None, *dict.fromkeys(scaled(number, size) for number in CONSECUTIVE)]


def _runs(draft: Sequence[bool], length: int) -> int:
    """Return the number of runs of `length` matching tokens."""
    return sum(all(draft[start : start + length]) for start in range(len(draft) - length + 1))
