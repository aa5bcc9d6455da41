"""Plain decoding as a drafter, so that the loop needs no second path."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

from paceline.drafters.shared.file_options import NoOptions
from paceline.engine.drafter import Drafter
from paceline.engine.sequence import Sequence
from paceline.engine.tree import EMPTY_TREE, DraftTree


class NoDrafter(Drafter):
    """Proposes nothing."""

    name = "none"
    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions) -> NoDrafter:
        """Build it from its (empty) options."""
        return cls()

    def propose(self, seqs: ListLike[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Return one empty tree per sequence."""
        return [EMPTY_TREE] * len(seqs)
