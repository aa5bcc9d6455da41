"""The tree Ouroboros proposes: the drafted chain, phrases behind it and behind the newest token,
and the draft's alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree, TreeBuilder
from paceline.drafters.ouroboros.phrase_acceptance import Evidence, NodeSource, PhraseAcceptance
from paceline.drafters.shared.ngram_pool import Ngram
from paceline.drafters.shared.trees import likeliest_first

Phrases = Callable[
    [list[int], int], Sequence[Ngram]
]  # (tokens, most) -> phrases that may follow them


class Alternative(NamedTuple):
    """A token the draft model might have said instead.

    Attributes:
        path_prob: the probability, by the draft model, that the draft is right up to there and this
            token follows.
        prob: that this token follows where the draft is right so far.
        place: its place in the drafted chain.
        token: its id.
    """

    path_prob: float
    prob: float
    place: int
    token: int


@dataclass(slots=True)
class Proposal:
    """What was proposed for one sequence.

    Attributes:
        tree: all of it. What is fed may be less: its first nodes, or where the target takes chains,
            its best one.
        chain: the nodes of the drafted chain.
        suffixes: per phrase behind the chain the phrase itself and its nodes, fewer where it was
            cut.
        evidence: per node what speaks for it, where the tree has confidence.
    """

    tree: DraftTree = EMPTY_TREE
    chain: Sequence[int] = ()
    suffixes: list[tuple[Ngram, list[int]]] = field(default_factory=list)
    evidence: Sequence[Evidence] = ()

    def begins_with(self, tree: DraftTree) -> bool:
        """Whether a tree is this one, or its first nodes."""
        fed = len(tree)
        return tree is self.tree or (
            tree.token_ids == self.tree.token_ids[:fed] and tree.parents == self.tree.parents[:fed]
        )

    def likeliest_first(self) -> Proposal:
        """The same with the nodes of the tree in another order."""
        tree, before = likeliest_first(self.tree)
        place = {node: at for at, node in enumerate(before)}
        suffixes = [(phrase, [place[node] for node in nodes]) for phrase, nodes in self.suffixes]
        return Proposal(
            tree,
            [place[node] for node in self.chain],
            suffixes,
            [self.evidence[node] for node in before],
        )


class ProposalBuilder:
    """Merges what is proposed for a sequence.

    Args:
        text: the newest two tokens of the sequence, or one.
        chain: the drafted tokens. probs: of each, by the draft model, where there are rates.
        most: nodes. deepest: levels.
        phrases: asks the pool.
        rates: if given, the tree gets confidence by them, and the likeliest paths first.
    """

    def __init__(
        self,
        text: Sequence[int],
        chain: Sequence[int],
        probs: Sequence[float],
        most: int,
        deepest: int,
        phrases: Phrases,
        rates: PhraseAcceptance | None = None,
    ) -> None:
        self._text, self._chain, self._deepest, self._phrases = (
            list(text),
            list(chain[:deepest]),
            deepest,
            phrases,
        )
        self._rates = rates
        self._tree = TreeBuilder(most)
        self._last = self._tree.add_path(self._chain, origin=Origin.MODEL)
        self._chain_nodes = range(len(self._tree))
        self._evidence = (
            []
            if rates is None
            else [Evidence(NodeSource.CHAIN, probs[node]) for node in self._chain_nodes]
        )
        self._suffixes: list[tuple[Ngram, list[int]]] = []

    def add_suffixes(self, most: int) -> None:
        """Add phrases behind the chain."""
        for phrase in self._phrases([*self._text[-1:], *self._chain], most):
            self._suffixes.append(
                (phrase, self._add_suffix(phrase[: self._deepest - len(self._chain)]))
            )

    def add_alternatives(self, alternatives: Sequence[Alternative]) -> None:
        """Add tokens the draft model might have said instead, each with the newest phrase that
        follows it.

        None goes deeper than the chain: where the target takes chains only, the chain is what it
        gets.
        """
        chain = self._chain
        for alternative in alternatives:
            place, token = alternative.place, alternative.token
            if place >= len(chain):
                continue
            before = chain[place - 1] if place else self._text[-1]
            following = next(iter(self._phrases([before, token], 1)), ())
            node = self._tree.add(token, place - 1, Origin.MODEL)
            if (place - 1, token) in self._tree:
                self._note(Evidence(NodeSource.ALTERNATIVE, alternative.prob))
                self._tree.add_path(following[: len(chain) - place - 1], node, Origin.POOL)
                self._note(Evidence(NodeSource.PHRASE))

    def add_phrases(self, most: int) -> None:
        """Add phrases behind the newest token, no deeper than the chain."""
        for phrase in self._phrases(self._text, most):
            self._tree.add_path(phrase[: len(self._chain)], origin=Origin.POOL)
            self._note(Evidence(NodeSource.PHRASE))

    def build(self) -> Proposal:
        """Return all of it."""
        tree = self._tree.build()
        if self._rates is None:
            return Proposal(tree, self._chain_nodes, self._suffixes)
        confidence = [self._rates.confidence(one) for one in self._evidence]
        return Proposal(
            replace(tree, confidence=confidence), self._chain_nodes, self._suffixes, self._evidence
        ).likeliest_first()

    def _note(self, first: Evidence) -> None:
        """Note what speaks for the nodes that were added last: the first one, and those behind
        it.
        """
        if self._rates is None:
            return
        for _ in range(len(self._evidence), len(self._tree)):
            self._evidence.append(first)
            first = Evidence(NodeSource.WITHIN)

    def _add_suffix(self, phrase: Sequence[int]) -> list[int]:
        """Add a phrase behind the chain as far as there is room, and return its nodes."""
        nodes, parent, tree = [], self._last, self._tree
        for token in phrase:
            if (parent, token) not in tree and len(tree) >= tree.max_nodes:
                break
            parent = tree.add(token, parent, Origin.POOL)
            nodes.append(parent)
        self._note(Evidence(NodeSource.SUFFIX))
        return nodes
