"""Define a drafter's input in a step, and the draft trees it proposes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.tree import DraftTree

if TYPE_CHECKING:
    from paceline.core.flat_trees import FlatTrees
    from paceline.draft_budget.drafter_stats import DrafterStats
    from paceline.draft_head.guessing import DraftHead


@dataclass(frozen=True, eq=False, slots=True)
class DrafterState:
    """A drafter and its statistics in one engine.

    Attributes:
        drafter: Drafter that proposes the trees.
        stats: Statistics on its draft trees; None if the engine verifies all trees as proposed.
    """

    drafter: Drafter
    stats: DrafterStats | None


@dataclass(frozen=True, eq=False, slots=True)
class DrafterBatch:
    """The requests in a step that share a drafter.

    Attributes:
        drafter_state: The drafter and its statistics.
        requests: Requests that take part in the step.
        max_nodes: For each request, the maximum number of nodes in the request's draft tree.
        draft_head: Draft head that reads the target's hidden states, or None. The engine adds the
            draft trees from this head to the verification results (outcomes).
        num_head_tokens: Number of tokens that the draft head drafts per request.
    """

    drafter_state: DrafterState
    requests: list[Request]
    max_nodes: list[int]
    draft_head: DraftHead | None = None
    num_head_tokens: int = 0

    def with_head(self, draft_head: DraftHead | None, num_tokens: int) -> DrafterBatch:
        """Return the batch with a draft head that drafts `num_tokens` tokens per request."""
        return DrafterBatch(
            self.drafter_state, self.requests, self.max_nodes, draft_head, num_tokens
        )


@dataclass(frozen=True, eq=False, slots=True)
class Drafts:
    """The draft trees that one drafter proposes in a step.

    Attributes:
        batch: The requests that share the drafter.
        ready: Requests whose newest token the step processes. The other requests in `batch` are
            still in prefill.
        trees: Draft tree for each ready request.
        draft_seconds: Seconds spent in the drafter's own model.
        flat: The trees as arrays. None if the arrays were not needed, or if the draft budget cannot
            cut the trees.
    """

    batch: DrafterBatch
    ready: Sequence[Request]
    trees: Sequence[DraftTree]
    draft_seconds: float = 0.0
    flat: FlatTrees | None = None

    @property
    def state(self) -> DrafterState:
        """Return the drafter and its statistics."""
        return self.batch.drafter_state

    @property
    def top_k(self) -> int:
        """Return the number of the target's top tokens that the drafter needs per node."""
        drafter, stats = self.state.drafter, self.state.stats
        return drafter.top_k if stats is None else stats.top_k(drafter)

    def without(self, requests: Container[Request]) -> Drafts:
        """Return the drafts, leaving out those for the given requests."""
        rows = [row for row, request in enumerate(self.ready) if request not in requests]
        ready, trees = [self.ready[row] for row in rows], [self.trees[row] for row in rows]
        return Drafts(self.batch, ready, trees, self.draft_seconds)
