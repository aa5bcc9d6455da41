"""Calibrate the nodes of Ouroboros: acceptance rates by source and probability."""

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
    """Name the source of a node.

    CHAIN is the drafted chain, ALTERNATIVE another choice of the draft model. SUFFIX is the first
    token of a phrase after the chain, PHRASE that of any other phrase, WITHIN a later token of a
    phrase.
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
    """Describe the source of a node.

    Attributes:
        kind: Source of the node.
        prob: Probability by the draft model; 0 if it gives none.
    """

    kind: NodeSource
    prob: float = 0.0

    @property
    def prior(self) -> float:
        """Acceptance rate given the parent before any count."""
        if self.kind == NodeSource.CHAIN:
            return first_choice_prior(self.prob)
        return _PRIORS.get(self.kind, self.prob)


class PhraseAcceptance:
    """Count trials and hits by source and probability, for all requests.

    A node is tried when the target has predicted a token after its parent, whether the node was
    processed or not.
    """

    def __init__(self) -> None:
        self._counts = AcceptanceCounts(len(NodeSource), BUCKETS, PRIOR_TRIALS, FADING)

    def confidence(self, evidence: Evidence) -> float:
        """Return the estimated acceptance rate of a node given its parent."""
        return min(1.0, self._counts.rate(evidence.prior, evidence.prob, evidence.kind))

    def learn(self, evidence: Sequence[Evidence], outcome: Outcome) -> None:
        """Count which nodes of an outcome were right.

        Args:
            evidence: Source per node of the outcome's tree.
            outcome: Outcome of the tree.
        """
        for node, accepted in tried(outcome):
            self._counts.count(accepted, evidence[node].prob, evidence[node].kind)
