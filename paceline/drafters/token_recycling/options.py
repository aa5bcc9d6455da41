"""Options of the token_recycling drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range
from paceline.util.limits import LONGEST_KEY, ROWS

TREES = ("best", "paper")
MOST_NODES = 256


@dataclass(frozen=True, slots=True)
class TokenRecyclingOptions:
    """Attributes:
    keys: most newest tokens under which a distribution is kept; the paper has 1.
    tree: best = the likeliest nodes | paper = its fixed tree.
    nodes: most nodes of a tree. Not given: 48 with the budget, without it 16, and in a larger batch
    what makes 48 in all; with
        tree=paper all 80.
    budget: of these, the engine feeds what pays for its forward; not of the paper's tree, which is
    fed whole. least: chance of a path below which it is not proposed (tree=best).
    rows: distributions kept, of all requests together; 110 bytes each.
    pool: file that what is kept is read from, if it is there, and saved to.
    """

    keys: int = 3
    tree: str = "best"
    nodes: int | None = None
    budget: bool = True
    least: float = 0.001
    rows: int = ROWS
    pool: str | None = None

    def __post_init__(self) -> None:
        require_range("token_recycling", "keys", self.keys, 1, LONGEST_KEY)
        require_range("token_recycling", "least", self.least, 0, 1)
        require_range("token_recycling", "rows", self.rows, 1, 1 << 26)
        if self.nodes is not None:
            require_range("token_recycling", "nodes", self.nodes, 1, MOST_NODES)
        if self.tree not in TREES:
            raise ConfigError(
                f"token_recycling: got tree={self.tree!r}; expected one of {', '.join(TREES)}."
            )
