"""Store the results for the lookahead paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from papers.lookahead.options import LookaheadConfig
from papers.part import BenchPart


@dataclass(frozen=True, slots=True)
class LookaheadResult:
    """Measured figure 4 and tables; None for those that an interruption left out."""

    title: ClassVar[str] = "Lookahead Decoding (Fu et al., ICML 2024)"

    config: LookaheadConfig
    tables: BenchPart | None
    figure: BenchPart | None

    @property
    def parts(self) -> list[BenchPart]:
        """Return the benchmark runs that were measured."""
        return [part for part in (self.tables, self.figure) if part is not None]

    @property
    def complete(self) -> bool:
        """Return whether everything was measured without interruption."""
        return len(self.parts) == 2 and all(part.complete for part in self.parts)
