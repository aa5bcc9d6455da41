"""Options of the pia drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class PiaOptions:
    """Attributes:
    nodes: most nodes of a tree ("decoding length").
    length: most tokens of a branch ("branch length"); phrases are kept one token longer.
    query: newest tokens that are looked up; fewer where they give less than a branch.
    """

    nodes: int = 64
    length: int = 12
    query: int = 2

    def __post_init__(self) -> None:
        require_range("pia", "nodes", self.nodes, 1)
        require_range("pia", "length", self.length, 1)
        require_range("pia", "query", self.query, 1, self.length + 1)
