"""One tree from everything that is known: retrieval, and the target's own distributions, kept.

Retrieval (`sssd`: the request itself and a datastore) gives long runs, the kept distributions (`shared/recycled`) the
alternatives at each fork. A child's chance is counted online by what both say about it (`shared/chances`); the tree takes what is
likeliest on its whole path, from either source.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from typing import Any

from paceline.drafters.auto.options import AutoOptions
from paceline.drafters.shared.recycled import TOP
from paceline.drafters.shared.recycler import Recycler, node_rule_of
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.options import SssdOptions
from paceline.engine.drafter import Drafter, Outcome
from paceline.engine.sequence import Sequence
from paceline.engine.tree import DraftTree

_RETRIEVED = 48  # nodes that retrieval may propose


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
