"""Plain decoding as a drafter, so that the loop needs no second path."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.drafter import Drafter
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree


@dataclass(frozen=True, slots=True)
class NoOptions:
    """No options."""


class NoDrafter(Drafter):
    """Proposes nothing."""

    name = "none"
    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions) -> NoDrafter:
        """From its (empty) options."""
        return cls()

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """One empty tree per sequence."""
        return [EMPTY_TREE] * len(seqs)
