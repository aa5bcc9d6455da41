"""Hold the statistics of a drafter, and its requests and results in one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.draft_budget.acceptance_calibration import (
    AcceptanceCalibration,
    FlatTrees,
    count,
    flatten_trees,
    new_calibration,
)
from paceline.draft_budget.drafting_backoff import DraftingBackoff
from paceline.draft_budget.settings import DraftBudgetSettings

if TYPE_CHECKING:
    from paceline.draft_head.guessing import DraftHead


@dataclass(eq=False, slots=True)
class DrafterStats:
    """Hold the statistics of one drafter in one engine.

    Attributes:
        acceptance_calibration: How often nodes of each confidence were accepted.
        gate: Switches the drafter off while drafting is slower than plain decoding.
    """

    acceptance_calibration: AcceptanceCalibration = field(default_factory=new_calibration)
    gate: DraftingBackoff = field(default_factory=DraftingBackoff)

    @classmethod
    def with_settings(cls, settings: DraftBudgetSettings) -> DrafterStats:
        """Return empty statistics that use the settings."""
        return cls(new_calibration(settings), DraftingBackoff(settings))


@dataclass(eq=False, slots=True)
class DrafterState:
    """Pair a drafter with its statistics.

    Attributes:
        drafter: Proposes the draft trees.
        stats: Statistics of its draft trees; None = the engine verifies them as proposed.
    """

    drafter: Drafter
    stats: DrafterStats | None


@dataclass(eq=False, slots=True)
class DrafterBatch:
    """Collect the requests of a step that share a drafter, and the results of the step.

    Attributes:
        drafter_state: The drafter and its statistics.
        requests: Requests that take part in the step.
        max_nodes: Maximum number of nodes of the draft tree, per request.
        ready: Requests whose newest token the step feeds; the others only prefill.
        trees: Draft tree of each ready request.
        outcomes: Verification result of each ready request.
        flat: Trees as proposed, if the budget may cut them; else None.
        cost: Time of the step with the trees, in steps without them; 0 if nobody needs it. A
            drafter that cannot do without its model has a cost even if the budget cuts its trees:
            the model's time has passed.
        draft_seconds: Seconds spent in the draft model and in the hidden-state draft head.
        draft_head: Hidden-state draft head whose guesses the outcomes carry; None = they carry
            none.
        num_head_tokens: Number of tokens that the draft head predicts.
        error: Exception of the drafter; it ends the requests of this batch only.
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
        """Return the number of nodes of the largest tree."""
        return max(map(len, self.trees), default=0)

    @property
    def new_tokens(self) -> int:
        """Return the number of tokens that the requests received."""
        return sum(len(outcome.new_token_ids) for outcome in self.outcomes)

    def flatten(self) -> None:
        """Set `flat` where there are trees, and all of them are guesses with confidence."""
        if self.width and all(
            tree.probs is None and (tree.confidence is not None or not len(tree))
            for tree in self.trees
        ):
            self.flat = flatten_trees(self.trees)

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
