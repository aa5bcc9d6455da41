"""Options of the rest drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range
from paceline.util.limits import SORTED


@dataclass(frozen=True, slots=True)
class RestOptions:
    """Attributes:
    datastore: folder of the store; required.
    longest, shortest: tokens of the suffix looked up, longest first.
    matches: most matches read in each shard of the store: the first ones, as in the public code.
    length: most tokens of a continuation; it ends with its document.
    nodes: most nodes of a tree.
    """

    datastore: str | None = None
    longest: int = 16
    shortest: int = 2
    matches: int = 5000
    length: int = 10
    nodes: int = 64

    def __post_init__(self) -> None:
        if not self.datastore:
            raise ConfigError(
                "rest: got no datastore; expected one to guess from. Build it with `paceline"
                " datastore build PATH --tokenizer"
                " ...` and say rest:datastore=PATH."
            )
        for name in ("shortest", "matches", "length", "nodes"):
            require_range("rest", name, getattr(self, name), 1)
        require_range("rest", "longest", self.longest, self.shortest)
        if self.longest + self.length > SORTED:
            raise ConfigError(
                f"rest: got longest={self.longest} and length={self.length}; expected at most"
                f" {SORTED} together, the tokens by"
                " which a store is sorted. Reduce one."
            )
