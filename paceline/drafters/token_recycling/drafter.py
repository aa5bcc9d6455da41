"""Token Recycling (Luo et al. 2024): what the target said would follow the newest tokens, the last time it saw them.

`tree=paper,keys=1` is the paper's method: the best 8 tokens after each single token, and a fixed tree of 80 nodes. The default
has longer keys and grows the tree best first, by how often a guess of that kind has come true.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np

from paceline.common.config import require_range
from paceline.drafters.shared.joined_tree import GUESS
from paceline.drafters.shared.recycled import LONGEST_KEY, TOP
from paceline.drafters.shared.recycler import ROWS, Recycler, as_draft, node_rule_of
from paceline.drafters.token_recycling.paper_tree import PARENTS, RANKS, fill
from paceline.engine.drafter import Drafter, Outcome
from paceline.engine.sequence import Sequence
from paceline.engine.tree import DraftTree
from paceline.errors import ConfigError

TREES = ("best", "paper")
_MOST_NODES = 256


@dataclass(frozen=True, slots=True)
class TokenRecyclingOptions:
    """Attributes:
    keys: most newest tokens under which a distribution is kept; the paper has 1.
    tree: best = the likeliest nodes | paper = its fixed tree.
    nodes: most nodes of a tree. Not given: 48 with the budget, without it 16, and in a larger batch what makes 48 in all; with
        tree=paper all 80.
    budget: of these, the engine feeds what pays for its forward; not of the paper's tree, which is fed whole.
    least: chance of a path below which it is not proposed (tree=best).
    rows: distributions kept, of all requests together; 110 bytes each.
    """

    keys: int = 3
    tree: str = "best"
    nodes: int | None = None
    budget: bool = True
    least: float = 0.001
    rows: int = ROWS

    def __post_init__(self) -> None:
        require_range("token_recycling", "keys", self.keys, 1, LONGEST_KEY)
        require_range("token_recycling", "least", self.least, 0, 1)
        require_range("token_recycling", "rows", self.rows, 1, 1 << 26)
        if self.nodes is not None:
            require_range("token_recycling", "nodes", self.nodes, 1, _MOST_NODES)
        if self.tree not in TREES:
            raise ConfigError(f"token_recycling: got tree={self.tree!r}; expected one of {', '.join(TREES)}.")


class TokenRecycling(Drafter):
    """Guesses only: lossless and seed-identical at any temperature. What is kept is shared by all requests."""

    name = "token_recycling"
    top_k = TOP
    Options = TokenRecyclingOptions

    def __init__(self, options: TokenRecyclingOptions) -> None:
        self._options = options
        self.budget = options.budget and options.tree == "best"
        fixed = len(PARENTS) if options.tree == "paper" else None
        self.node_rule = node_rule_of(options.nodes or fixed, options.budget)
        self._recycler = Recycler(options.keys, options.rows)

    @classmethod
    def build(cls, options: TokenRecyclingOptions) -> TokenRecycling:
        """Build one from its options."""
        return cls(options)

    def propose(self, seqs: ListLike[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft one tree per sequence."""
        most = self._options.nodes or _MOST_NODES
        draft = self._fixed_tree if self._options.tree == "paper" else self._best_tree
        return [draft(seq, min(limit, most)) for seq, limit in zip(seqs, max_nodes, strict=True)]

    def _best_tree(self, seq: Sequence, nodes: int) -> DraftTree:
        return self._recycler.draft(seq, nodes, self._options.least)

    def _fixed_tree(self, seq: Sequence, nodes: int) -> DraftTree:
        tree = np.empty(nodes, dtype=GUESS)
        newest = np.array(seq.token_ids[-LONGEST_KEY:], dtype=np.int64)
        size = fill(self._recycler.table, newest, self._options.keys, PARENTS, RANKS, seq.remaining - 1, tree)
        return as_draft(tree, size)

    def observe(self, outcomes: ListLike[Outcome]) -> None:
        """Keep what the target said."""
        self._recycler.observe(outcomes)

    def stop(self, seq: Sequence) -> None:
        """Free what belongs to a sequence."""
        self._recycler.stop(seq)
