"""Estimate the acceptance rate of Ouroboros nodes by source and draft probability."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from paceline.core.drafter import Outcome
from paceline.draft_budget.acceptance_counts import AcceptanceCounts
from paceline.drafters.draft_model.draft_calibration import first_choice_prior
from paceline.drafters.ouroboros.settings import (
    BUCKETS,
    FADING,
    PHRASE_PRIOR,
    PRIOR_TRIALS,
    SUFFIX_PRIOR,
    WITHIN_PRIOR,
)
from paceline.drafters.shared.trees import tried


class NodeSource(IntEnum):
    """The source of a node in the draft tree.

    - CHAIN: the chain that the draft model drafted.
    - ALTERNATIVE: a token that the draft model considered for a position of the chain.
    - SUFFIX: the first token of a pool phrase that follows the chain.
    - PHRASE: the first token of any other pool phrase.
    - WITHIN: a later token of a pool phrase.
    """

    CHAIN = 0
    ALTERNATIVE = 1
    SUFFIX = 2
    PHRASE = 3
    WITHIN = 4


_PRIORS = {
    NodeSource.SUFFIX: SUFFIX_PRIOR,
    NodeSource.PHRASE: PHRASE_PRIOR,
    NodeSource.WITHIN: WITHIN_PRIOR,
}


class Evidence(NamedTuple):
    """A node's source and draft probability, which predict its acceptance rate.

    Attributes:
        kind: Source of the node.
        prob: The draft model's probability of the token; 0 for tokens from the pool.
    """

    kind: NodeSource
    prob: float = 0.0

    @property
    def prior(self) -> float:
        """Assumed acceptance rate before any trial, given that the parent is accepted."""
        if self.kind == NodeSource.CHAIN:
            return first_choice_prior(self.prob)
        return _PRIORS.get(self.kind, self.prob)


class PhraseAcceptance:
    """Counts how often nodes were accepted, by source and probability.

    The counts cover all requests. A node counts as a trial once the target has predicted a token
    after the node's parent, even if the node was not verified. The trial is a hit if the target
    accepted the node.
    """

    def __init__(self) -> None:
        self._counts = AcceptanceCounts(len(NodeSource), BUCKETS, PRIOR_TRIALS, FADING)

    def confidence(self, evidence: Evidence) -> float:
        """Return a node's estimated acceptance rate, given that its parent is accepted."""
        return min(1.0, self._counts.rate(evidence.prior, evidence.prob, evidence.kind))

    def learn(self, evidence: Sequence[Evidence], outcome: Outcome) -> None:
        """Count how many nodes of a tree were tried, and how many were accepted.

        A node counts as tried once the target has predicted a token after the node's parent.

        Args:
            evidence: Source and probability of each node in the outcome's tree.
            outcome: Result of verifying the tree.
        """
        for node, accepted in tried(outcome):
            self._counts.count(accepted, evidence[node].prob, evidence[node].kind)
