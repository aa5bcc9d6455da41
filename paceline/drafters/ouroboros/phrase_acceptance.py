"""How often what Ouroboros proposes comes true, by where it came from: counted while decoding,
one table for all requests.
"""

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
    """Where a node came from: the drafted chain, another choice of the draft model, a phrase behind
    the chain or any other's first token, or a later token of a phrase."""

    CHAIN = 0
    ALTERNATIVE = 1
    SUFFIX = 2
    PHRASE = 3
    WITHIN = 4


_PRIORS = {
    NodeSource.SUFFIX: 0.2,
    NodeSource.PHRASE: 0.15,
    NodeSource.WITHIN: 0.6,
}  # of those the draft model gives no probability


class Evidence(NamedTuple):
    """What speaks for a node. Attributes: prob: by the draft model, where it was asked; else 0."""

    kind: NodeSource
    prob: float = 0.0

    @property
    def prior(self) -> float:
        """The chance that it is accepted where its parent is, before anything was counted."""
        if self.kind == NodeSource.CHAIN:
            return first_choice_prior(self.prob)
        return _PRIORS.get(self.kind, self.prob)

    @property
    def step(self) -> int:
        """Its row of the table."""
        return min(_STEPS - 1, int(self.prob * _STEPS))


class PhraseAcceptance:
    """Trials and hits by kind and probability. A node is tried when the target has spoken at its
    parent, fed or not.
    """

    def __init__(self) -> None:
        self._trials = [[0.0] * _STEPS for _ in NodeSource]
        self._hits = [[0.0] * _STEPS for _ in NodeSource]

    def confidence(self, evidence: Evidence) -> float:
        """Return the chance of a node, given its parent."""
        hits = self._hits[evidence.kind][evidence.step] + _PRIOR_TRIALS * evidence.prior
        return min(1.0, hits / (self._trials[evidence.kind][evidence.step] + _PRIOR_TRIALS))

    def learn(self, evidence: Sequence[Evidence], outcome: Outcome) -> None:
        """Count what came true.

        Args:
            evidence: per node of the outcome's tree.
        """
        for node, right in tried(outcome):
            self._note(evidence[node], right)

    def _note(self, one: Evidence, right: bool) -> None:
        trials, hits = self._trials[one.kind], self._hits[one.kind]
        if trials[one.step] >= _FADING:
            trials[one.step], hits[one.step] = trials[one.step] / 2, hits[one.step] / 2
        trials[one.step] += 1
        hits[one.step] += right
