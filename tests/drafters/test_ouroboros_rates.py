"""Test Ouroboros' confidences, which are counted by the source of each node."""

from __future__ import annotations

import pytest

from paceline import DraftTree, Outcome
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.drafters.ouroboros.phrase_acceptance import Evidence, NodeSource, PhraseAcceptance
from paceline.drafters.ouroboros.proposal import Alternative, Proposal, ProposalBuilder


def outcome_of(tree: DraftTree, accepted: list[int], emitted: list[int]) -> Outcome:
    return Outcome(
        Request([1, 2], SamplingParams()), tree, accepted, emitted, [0] * (1 + len(tree))
    )


def test_confidence_follows_acceptance() -> None:
    rates, chain, phrase = (
        PhraseAcceptance(),
        Evidence(NodeSource.CHAIN, 0.5),
        Evidence(NodeSource.PHRASE),
    )
    assert rates.confidence(chain) == pytest.approx(0.5**0.6)
    assert rates.confidence(phrase) == pytest.approx(0.15)
    tree = DraftTree([5, 6, 7], [-1, 0, -1])
    for _ in range(3000):
        rates.learn([chain, Evidence(NodeSource.CHAIN, 0.9), phrase], outcome_of(tree, [0], [5, 9]))
    assert rates.confidence(chain) > 0.98
    assert (
        rates.confidence(Evidence(NodeSource.CHAIN, 0.95)) < 0.01
    )  # tried below the first node and never right
    assert rates.confidence(phrase) < 0.01
    assert rates.confidence(Evidence(NodeSource.ALTERNATIVE, 0.5)) == pytest.approx(0.5)


def test_nodes_after_the_last_token_are_not_counted() -> None:
    """Check a node whose parent ends the answer: it was neither right nor wrong."""
    rates, one = PhraseAcceptance(), Evidence(NodeSource.CHAIN, 0.5)
    rates.learn(
        [one, Evidence(NodeSource.CHAIN, 0.9)], outcome_of(DraftTree([5, 6], [-1, 0]), [0], [5])
    )
    assert rates.confidence(Evidence(NodeSource.CHAIN, 0.9)) == pytest.approx(0.9**0.6)


def test_likeliest_paths_come_first() -> None:
    """Check the order of chain 5 6 and phrase 7 8, alternative 9 for 5 and phrase 5 4."""
    phrases = {(2, 5, 6): [(7, 8)], (2, 9): [], (1, 2): [(5, 4)]}

    def proposed(rates: PhraseAcceptance | None) -> Proposal:
        builder = ProposalBuilder(
            [1, 2], [5, 6], [0.9, 0.01], 9, 4, lambda text, most: phrases[tuple(text)][:most], rates
        )
        builder.add_suffixes(1)
        builder.add_alternatives([Alternative(0.4, 0.4, 0, 9)])
        builder.add_phrases(1)
        return builder.build()

    proposal, fed = proposed(PhraseAcceptance()), proposed(None)
    tree = proposal.tree
    assert fed.tree.confidence is None
    assert (fed.tree.token_ids, list(fed.chain)) == ([5, 6, 7, 8, 9, 4], [0, 1])
    assert tree.confidence is not None
    assert tree.token_ids == [5, 9, 4, 6, 7, 8]
    assert [tree.token_ids[node] for node in proposal.chain] == [5, 6]
    assert [[tree.token_ids[node] for node in nodes] for _, nodes in proposal.suffixes] == [[7, 8]]
    kinds = {token: one.kind for token, one in zip(tree.token_ids, proposal.evidence, strict=True)}
    assert kinds == {5: 0, 6: 0, 7: 2, 8: 4, 9: 1, 4: 3}
