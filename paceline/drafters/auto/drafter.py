"""One tree from everything that is known: retrieval, and the target's own distributions, kept.

Retrieval (`sssd`: the request itself and a datastore) gives long runs, the kept distributions (`shared/recycled`) the
alternatives at each fork. A child's chance is counted online by what both say about it (`shared/chances`); the tree takes what is
likeliest on its whole path, from either source.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from typing import Any

from paceline.common.config import require_range
from paceline.drafters.shared.recycled import LONGEST_KEY, TOP
from paceline.drafters.shared.recycler import Recycler, node_rule_of
from paceline.drafters.sssd.drafter import Sssd, SssdOptions
from paceline.engine.drafter import Drafter, Outcome
from paceline.engine.sequence import Sequence
from paceline.engine.tree import DraftTree

_MOST_NODES = 256
_RETRIEVED = 48  # nodes that retrieval may propose


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Attributes:
    datastore: folder of a store, or "demo", that of the embedded target; none = without.
    calibration: of the retrieval: a file of `paceline replay --fit`; none = the one that comes with the package.
    keys: most newest tokens under which a distribution is kept.
    nodes: most nodes of a tree. Not given: 48 with the budget; without it 16, and in a larger batch what makes 48 in all.
    budget: of these, the engine feeds what pays for its forward.
    least: chance of a path below which it is not proposed.
    live: finished answers go into the datastore.
    """

    datastore: str | None = None
    calibration: str | None = None
    keys: int = 3
    nodes: int | None = None
    budget: bool = True
    least: float = 0.001
    live: bool = False

    def __post_init__(self) -> None:
        require_range("auto", "keys", self.keys, 1, LONGEST_KEY)
        require_range("auto", "least", self.least, 0, 1)
        if self.nodes is not None:
            require_range("auto", "nodes", self.nodes, 1, _MOST_NODES)


class Auto(Drafter):
    """Guesses only: lossless and seed-identical at any temperature."""

    name = "auto"
    top_k = TOP
    Options = AutoOptions

    def __init__(self, options: AutoOptions) -> None:
        self._options = options
        self.budget = options.budget
        self.node_rule = node_rule_of(options.nodes, options.budget)
        self._retrieval = Sssd(
            SssdOptions(options.datastore, calibration=options.calibration, nodes=_RETRIEVED, live=options.live)
        )
        self._recycler = Recycler(options.keys)
        self.ids_below = self._retrieval.ids_below

    @classmethod
    def build(cls, options: AutoOptions) -> Auto:
        """Build one from its options.

        Raises:
            DatastoreError, ConfigError: a store or a calibration that cannot be read.
        """
        return cls(options)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a store whose ids are not of `tokenizer`."""
        self._retrieval.check_tokenizer(tokenizer)

    def start(self, seq: Sequence) -> None:
        """Pass on to the retrieval."""
        self._retrieval.start(seq)

    def propose(self, seqs: ListLike[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft one tree per sequence."""
        retrieved = self._retrieval.propose(seqs, [_RETRIEVED if limit else 0 for limit in max_nodes])
        return [
            self._recycler.draft(seq, limit, self._options.least, beside)
            for seq, limit, beside in zip(seqs, max_nodes, retrieved, strict=True)
        ]

    def observe(self, outcomes: ListLike[Outcome]) -> None:
        """Keep what the target said."""
        self._retrieval.observe(outcomes)
        self._recycler.observe(outcomes)

    def stop(self, seq: Sequence) -> None:
        """Free what belongs to a sequence."""
        self._retrieval.stop(seq)
        self._recycler.stop(seq)
