"""What is known of one drafter's drafts: what its confidence was worth, and whether drafts that
are fed whole pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree, IntArray
from paceline.draft_budget.acceptance_calibration import (
    AcceptanceCalibration,
    FlatTrees,
    count,
    new_calibration,
)
from paceline.draft_budget.drafting_backoff import DraftingBackoff
from paceline.draft_head.guessing import DraftHead


@dataclass(eq=False, slots=True)
class DrafterStats:
    """Of one drafter in one engine. Attributes:

    reliability: what its confidence was worth so far. gate: whether it is asked.
    """

    acceptance_calibration: AcceptanceCalibration = field(default_factory=new_calibration)
    gate: DraftingBackoff = field(default_factory=DraftingBackoff)


@dataclass(eq=False, slots=True)
class DrafterState:
    """One drafter of an engine.

    Attributes:
        worth: what is known of its drafts; None = they are fed as proposed.
    """

    drafter: Drafter
    stats: DrafterStats | None


@dataclass(eq=False, slots=True)
class DrafterBatch:
    """The sequences of a step that have the same drafter, and what came of them.

    Attributes:
        seqs, max_nodes: they, and per sequence the largest tree that may be verified.
        ready: those of them whose newest token is fed. trees: what is proposed for these.
        outcomes: what the target said about the trees.
        flat: the trees as they were proposed, where the budget may cut them; else None.
        cost: what the step takes with the trees, in steps without them; 0 = that is of no interest.
            Of trees that are cut, it is where a model made them that their drafter cannot do
            without: however few are fed, that time has passed.
        draft_seconds: in forwards of the drafter's own model, and in foreseeing.
        foresight, foresees: what makes the guesses that its outcomes are to carry, and how far
            ahead; None = they carry none.
        error: what the drafter raised, which ends its requests and no others.
    """

    drafter_state: DrafterState
    requests: list[Request]
    max_nodes: list[int]
    ready: list[Request] = field(default_factory=list)
    trees: list[DraftTree] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    flat: FlatTrees | None = None
    cost: float = 0.0
    draft_seconds: float = 0.0
    draft_head: DraftHead | None = None
    num_head_tokens: int = 0
    error: Exception | None = None

    @property
    def width(self) -> int:
        """Nodes of its largest tree."""
        return max(map(len, self.trees), default=0)

    @property
    def new_tokens(self) -> int:
        """How many tokens its sequences got."""
        return sum(len(outcome.new_token_ids) for outcome in self.outcomes)

    def flatten(self) -> None:
        """Set `flat` where there are trees, and all of them are guesses with confidence."""
        if self.width and all(
            tree.probs is None and (tree.confidence is not None or not len(tree))
            for tree in self.trees
        ):
            self.flat = _flatten(self.trees)

    def learn(self, all_tokens: int) -> None:
        """Count what came true.

        Args:
            all_tokens: that all sequences of the step got, also those of other drafters.
        """
        stats = self.drafter_state.stats
        if stats is None or not self.outcomes:
            return
        if self.flat is not None:
            emitted = [outcome.new_token_ids for outcome in self.outcomes]
            ends = np.cumsum([0, *map(len, emitted)], dtype=np.int64)
            count(
                stats.acceptance_calibration,
                self.flat,
                np.array(list(chain.from_iterable(emitted)), dtype=np.int64),
                ends,
            )
        if self.flat is not None and not self.drafter_state.drafter.needs_draft_model:
            stats.gate.note_cut(self.width)
        elif self.cost:
            # tokens of a step without these drafts
            without = all_tokens - self.new_tokens + len(self.outcomes)
            stats.gate.note(
                1 + self._gained() / without, self.cost, sum(map(bool, map(len, self.trees)))
            )

    def _gained(self) -> float:
        """Return the tokens that drafts brought, as if each sequence that had some had got as many:
        their harmonic mean.

        A step takes little less where some of its sequences have ended: drafts that bring one far
        and the others not end it early and save little.
        """
        drafted = [outcome for outcome in self.outcomes if len(outcome.tree)]
        if not drafted:
            return 0.0
        return len(drafted) * (
            len(drafted) / sum(1 / len(outcome.new_token_ids) for outcome in drafted) - 1
        )


def _flatten(trees: Sequence[DraftTree]) -> FlatTrees:
    parents: list[int] = []
    token_ids: list[int] = []
    confidence: list[float] = []
    starts = [0]
    for tree in trees:
        parents += tree.parents
        token_ids += tree.token_ids
        confidence += tree.confidence or ()
        starts.append(len(parents))
    integers: list[IntArray] = [
        np.array(column, dtype=np.int64) for column in (parents, token_ids, starts)
    ]
    return FlatTrees(integers[0], integers[1], np.array(confidence, dtype=np.float64), integers[2])
