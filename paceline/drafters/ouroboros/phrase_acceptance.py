"""Calibrate the nodes of Ouroboros: acceptance rates by source and probability."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from paceline.core.drafter import Outcome
from paceline.drafters.draft_model.draft_calibration import first_choice_prior
from paceline.drafters.shared.trees import tried

_STEPS = 10  # of a probability
_PRIOR_TRIALS = 6.0
_FADING = 1000.0  # trials of a step that are remembered


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


# of those the draft model gives no probability
_PRIORS = {NodeSource.SUFFIX: 0.2, NodeSource.PHRASE: 0.15, NodeSource.WITHIN: 0.6}


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

    @property
    def step(self) -> int:
        """Bucket of the probability in the table of counts."""
        return min(_STEPS - 1, int(self.prob * _STEPS))


class PhraseAcceptance:
    """Count trials and hits by source and probability, for all requests.

    A node is tried when the target has predicted a token after its parent, whether the node was
    processed or not.
    """

    def __init__(self) -> None:
        self._trials = [[0.0] * _STEPS for _ in NodeSource]
        self._hits = [[0.0] * _STEPS for _ in NodeSource]

    def confidence(self, evidence: Evidence) -> float:
        """Return the estimated acceptance rate of a node given its parent."""
        hits = self._hits[evidence.kind][evidence.step] + _PRIOR_TRIALS * evidence.prior
        return min(1.0, hits / (self._trials[evidence.kind][evidence.step] + _PRIOR_TRIALS))

    def learn(self, evidence: Sequence[Evidence], outcome: Outcome) -> None:
        """Count which nodes of an outcome were right.

        Args:
            evidence: Source per node of the outcome's tree.
            outcome: Outcome of the tree.
        """
        for node, right in tried(outcome):
            self._note(evidence[node], right)

    def _note(self, one: Evidence, right: bool) -> None:
        trials, hits = self._trials[one.kind], self._hits[one.kind]
        if trials[one.step] >= _FADING:
            trials[one.step], hits[one.step] = trials[one.step] / 2, hits[one.step] / 2
        trials[one.step] += 1
        hits[one.step] += right
