"""What is measured of the lookahead paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.bench.papers.lookahead.options import LookaheadConfig
from paceline.bench.papers.part import BenchPart


@dataclass(frozen=True, slots=True)
class LookaheadResult:
    """Figure 4 and the two tables as measured; a part is None if the run was interrupted before
    it.
    """

    title: ClassVar[str] = "Lookahead Decoding (Fu et al., ICML 2024)"

    config: LookaheadConfig
    tables: BenchPart | None
    figure: BenchPart | None

    @property
    def parts(self) -> list[BenchPart]:
        """The runs there were."""
        return [part for part in (self.tables, self.figure) if part is not None]

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        return len(self.parts) == 2 and all(part.complete for part in self.parts)
