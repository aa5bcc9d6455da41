"""What is measured of the Ouroboros paper (Zhao et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.bench.papers.orders import CONSECUTIVE, Order, scaled
from paceline.bench.papers.ouroboros.options import OuroborosConfig
from paceline.bench.papers.part import BenchPart

LONGEST = 8  # substrings that are counted


@dataclass(frozen=True, slots=True)
class Matches:
    """Sums over the verifications of drafts of one length, of one task.

    Attributes:
        prefix: tokens accepted, len(LCP) of the paper. equal: tokens that are the target's own in
            their place, #Match-1.
        rejected: verifications that found a wrong token; discarded: tokens behind the first wrong
            one.
        substrings: per length k, from 1 on, #Match-k of the discarded tokens, equation 7.
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
        """Count in what `own_tokens` says of every draft."""
        drafts = list(drafts)
        prefixes = [
            next((place for place, own in enumerate(draft) if not own), len(draft))
            for draft in drafts
        ]
        behind = [
            draft[prefix + 1 :]
            for draft, prefix in zip(drafts, prefixes, strict=True)
            if prefix < len(draft)
        ]
        return Matches(
            task,
            len(drafts),
            sum(prefixes),
            sum(map(sum, drafts)),
            len(behind),
            sum(map(len, behind)),
            tuple(
                sum(_runs(draft, length) for draft in behind) for length in range(1, LONGEST + 1)
            ),
        )

    @staticmethod
    def total(tasks: Sequence[Matches]) -> Matches:
        """Add all tasks up."""
        counts = ("verifications", "prefix", "equal", "rejected", "discarded")
        sums = {name: sum(getattr(one, name) for one in tasks) for name in counts}
        return Matches(
            "all",
            **sums,
            substrings=tuple(map(sum, zip(*(one.substrings for one in tasks), strict=True))),
        )

    def per_verification(self) -> tuple[float, float]:
        """Return the means of the accepted tokens, and of those equal to the target's; table 1."""
        return self.prefix / self.verifications, self.equal / self.verifications

    def per_rejection(self) -> list[float]:
        """Return the means of #Match-k over the verifications that rejected something, per k;
        figure 3. Empty if none did.
        """
        return [count / self.rejected for count in self.substrings] if self.rejected else []


@dataclass(frozen=True, slots=True)
class MatchStudy:
    """Per task, in their order, what was counted; tasks without a draft of full length are left
    out.
    """

    gamma: int
    prompts: int
    complete: bool
    tasks: tuple[Matches, ...]


@dataclass(frozen=True, slots=True)
class OuroborosResult:
    """What was measured; empty is what came after an interruption.

    Attributes:
        methods: of tables 2 and 3 and figure 5. matches: of table 1 and figure 3.
        size: prompts per task of table 4; orders: its runs.
    """

    title: ClassVar[str] = "Ouroboros (Zhao et al., 2024)"

    config: OuroborosConfig
    methods: BenchPart
    matches: MatchStudy | None = None
    size: int = 1
    orders: tuple[Order, ...] = ()

    @property
    def parts(self) -> list[BenchPart]:
        """The runs there were."""
        return [self.methods, *(order.part for order in self.orders)]

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        counted = self.matches is not None and self.matches.complete
        return self.methods.complete and counted and len(self.orders) == len(orders_of(self.size))

    def order(self, consecutive: int | None) -> BenchPart | None:
        """Return what was measured in the order that stands for a consecutive number of the
        paper (None: the drawn order).
        """
        wanted = None if consecutive is None else scaled(consecutive, self.size)
        return next((order.part for order in self.orders if order.consecutive == wanted), None)


def orders_of(size: int) -> list[int | None]:
    """Return the orders that are measured: drawn (None), then the different consecutive numbers."""
    return [None, *dict.fromkeys(scaled(number, size) for number in CONSECUTIVE)]


def _runs(draft: Sequence[bool], length: int) -> int:
    """Places where `length` tokens in a row are right."""
    return sum(all(draft[start : start + length]) for start in range(len(draft) - length + 1))
