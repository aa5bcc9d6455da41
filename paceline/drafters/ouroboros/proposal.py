"""Build the Ouroboros tree from the drafted chain, phrases and alternatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.core.tree_builder import TreeBuilder
from paceline.drafters.ouroboros.phrase_acceptance import Evidence, NodeSource, PhraseAcceptance
from paceline.drafters.shared.ngram_pool import Ngram
from paceline.drafters.shared.trees import likeliest_first

# Function (tokens, most) that returns up to `most` phrases that may follow the tokens.
Phrases = Callable[[list[int], int], Sequence[Ngram]]


class Alternative(NamedTuple):
    """A token that the draft model considered likely but did not draft.

    Attributes:
        path_prob: The draft model's probability of the drafted tokens before this position, times
            `prob`.
        prob: Probability of the alternative token, given the drafted tokens before this position.
        position: Index, in the drafted chain, of the token that the alternative replaces.
        token: Token id.
    """

    path_prob: float
    prob: float
    position: int
    token: int


@dataclass(slots=True)
class Proposal:
    """A request's draft tree, and the source of its nodes.

    Attributes:
        tree: Complete tree. The engine may verify only its first nodes or its best chain.
        chain: Indices of the nodes in the drafted chain.
        suffixes: Phrases that follow the chain, each with the indices of its nodes. A phrase that
            was cut has fewer nodes than tokens.
        evidence: Source and draft probability of each node, if the tree has confidences.
    """

    tree: DraftTree = EMPTY_TREE
    chain: Sequence[int] = ()
    suffixes: list[tuple[Ngram, list[int]]] = field(default_factory=list)
    evidence: Sequence[Evidence] = ()

    def begins_with(self, tree: DraftTree) -> bool:
        """Return whether `tree` consists of the first nodes of this proposal's tree."""
        size = len(tree)
        return tree is self.tree or (
            tree.token_ids == self.tree.token_ids[:size]
            and tree.parents == self.tree.parents[:size]
        )

    def likeliest_first(self) -> Proposal:
        """Return the same proposal with its nodes sorted by path probability."""
        tree, before = likeliest_first(self.tree)
        position_of = {node: position for position, node in enumerate(before)}
        suffixes = [
            (phrase, [position_of[node] for node in nodes]) for phrase, nodes in self.suffixes
        ]
        return Proposal(
            tree,
            [position_of[node] for node in self.chain],
            suffixes,
            [self.evidence[node] for node in before],
        )


class ProposalBuilder:
    """Merges the drafted chain, phrases and alternative tokens into one draft tree.

    Args:
        text: The request's two newest tokens, or the only token if there is just one.
        chain: Tokens that the draft model has drafted, in order.
        probs: The draft model's probability for each drafted token; used only with `calibration`.
        most: Maximum number of nodes in the tree.
        max_depth: Maximum depth of the tree.
        phrases: Function (tokens, most) that returns up to `most` pool phrases likely to follow
            the tokens.
        calibration: Estimates each node's confidence. If given, the most likely paths come first;
            if None, the tree has no confidences.
    """

    def __init__(
        self,
        text: Sequence[int],
        chain: Sequence[int],
        probs: Sequence[float],
        most: int,
        max_depth: int,
        phrases: Phrases,
        calibration: PhraseAcceptance | None = None,
    ) -> None:
        self._text, self._chain, self._max_depth, self._phrases = (
            list(text),
            list(chain[:max_depth]),
            max_depth,
            phrases,
        )
        self._calibration = calibration
        self._tree = TreeBuilder(most)
        self._last = self._tree.add_path(self._chain, origin=Origin.MODEL)
        self._chain_nodes = range(len(self._tree))
        self._evidence = (
            []
            if calibration is None
            else [Evidence(NodeSource.CHAIN, probs[node]) for node in self._chain_nodes]
        )
        self._suffixes: list[tuple[Ngram, list[int]]] = []

    def add_suffixes(self, most: int) -> None:
        """Add up to `most` phrases that follow the drafted chain."""
        for phrase in self._phrases([*self._text[-1:], *self._chain], most):
            self._suffixes.append(
                (phrase, self._add_suffix(phrase[: self._max_depth - len(self._chain)]))
            )

    def add_alternatives(self, alternatives: Sequence[Alternative]) -> None:
        """Add alternatives to drafted tokens, each followed by a phrase from the pool.

        No branch is longer than the drafted chain, so a target that verifies only chains receives
        the drafted chain.

        Args:
            alternatives: Alternatives that the draft model considered, most likely first.
        """
        chain = self._chain
        for alternative in alternatives:
            index, token = alternative.position, alternative.token
            if index >= len(chain):
                continue
            before = chain[index - 1] if index else self._text[-1]
            following = next(iter(self._phrases([before, token], 1)), ())
            node = self._tree.add(token, index - 1, Origin.MODEL)
            if (index - 1, token) in self._tree:
                self._note(Evidence(NodeSource.ALTERNATIVE, alternative.prob))
                self._tree.add_path(following[: len(chain) - index - 1], node, Origin.POOL)
                self._note(Evidence(NodeSource.PHRASE))

    def add_phrases(self, most: int) -> None:
        """Add up to `most` phrases after the root, none longer than the drafted chain."""
        for phrase in self._phrases(self._text, most):
            self._tree.add_path(phrase[: len(self._chain)], origin=Origin.POOL)
            self._note(Evidence(NodeSource.PHRASE))

    def build(self) -> Proposal:
        """Return the proposal, with the most likely paths first if there is a calibration."""
        tree = self._tree.build()
        if self._calibration is None:
            return Proposal(tree, self._chain_nodes, self._suffixes)
        confidence = [self._calibration.confidence(evidence) for evidence in self._evidence]
        return Proposal(
            replace(tree, confidence=confidence), self._chain_nodes, self._suffixes, self._evidence
        ).likeliest_first()

    def _note(self, first: Evidence) -> None:
        """Record the source of the nodes added since the previous call.

        Args:
            first: Source and draft probability of the first of these nodes. The source of all other
                nodes is `NodeSource.WITHIN`.
        """
        if self._calibration is None:
            return
        for _ in range(len(self._evidence), len(self._tree)):
            self._evidence.append(first)
            first = Evidence(NodeSource.WITHIN)

    def _add_suffix(self, phrase: Sequence[int]) -> list[int]:
        """Add a phrase after the chain, and return its nodes.

        The phrase is cut if the tree reaches its maximum number of nodes.
        """
        nodes, parent, tree = [], self._last, self._tree
        for token in phrase:
            if (parent, token) not in tree and len(tree) >= tree.max_nodes:
                break
            parent = tree.add(token, parent, Origin.POOL)
            nodes.append(parent)
        self._note(Evidence(NodeSource.SUFFIX))
        return nodes
