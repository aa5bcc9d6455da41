"""The tree Ouroboros proposes: the drafted chain, phrases behind it and behind the newest token, and the draft's alternatives."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paceline.drafters.shared.ngram_pool import Ngram
from paceline.drafters.shared.trees import likeliest_first
from paceline.engine.origin import Origin
from paceline.engine.tree import EMPTY_TREE, DraftTree, TreeBuilder

# Confidence in a phrase's first token and in each later one, given those before; what comes true corrects it.
_FIRST_OF_A_PHRASE, _LATER_OF_A_PHRASE = 0.3, 0.6

Phrases = Callable[[list[int], int], ListLike[Ngram]]  # (tokens, most) -> phrases that may follow them


class Alternative(NamedTuple):
    """A token the draft model might have said instead.

    Attributes:
        path_prob: the probability, by the draft model, that the draft is right up to there and this token follows.
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
        tree: all of it. What is fed may be less: its first nodes, or where the target takes chains, its best one.
        chain: the nodes of the drafted chain.
        suffixes: per phrase behind the chain the phrase itself and its nodes, fewer where it was cut.
    """

    tree: DraftTree = EMPTY_TREE
    chain: ListLike[int] = ()
    suffixes: list[tuple[Ngram, list[int]]] = field(default_factory=list)

    def begins_with(self, tree: DraftTree) -> bool:
        """Whether a tree is this one, or its first nodes."""
        fed = len(tree)
        return tree is self.tree or (
            tree.token_ids == self.tree.token_ids[:fed] and tree.parents == self.tree.parents[:fed]
        )  # fmt: skip

    def likeliest_first(self) -> Proposal:
        """The same with the nodes of the tree in another order."""
        tree, before = likeliest_first(self.tree)
        place = {node: at for at, node in enumerate(before)}
        suffixes = [(phrase, [place[node] for node in nodes]) for phrase, nodes in self.suffixes]
        return Proposal(tree, [place[node] for node in self.chain], suffixes)


class ProposalBuilder:
    """Merges what is proposed for a sequence.

    Args:
        text: the newest two tokens of the sequence, or one.
        chain: the drafted tokens. probs: of each, by the draft model; empty = the tree needs no confidence.
        most: nodes. deepest: levels.
        phrases: asks the pool.
    """

    def __init__(
        self, text: ListLike[int], chain: ListLike[int], probs: ListLike[float], most: int, deepest: int, phrases: Phrases
    ) -> None:
        self._text, self._chain, self._deepest, self._phrases = list(text), list(chain[:deepest]), deepest, phrases
        self._tree = TreeBuilder(most)
        self._last = self._tree.add_path(self._chain, origin=Origin.MODEL)
        self._confidence = dict(enumerate(probs[: len(self._tree)]))  # of nodes that the draft model has a probability for
        self._chain_nodes = range(len(self._tree))
        self._suffixes: list[tuple[Ngram, list[int]]] = []

    def add_suffixes(self, most: int) -> None:
        """Add phrases behind the chain."""
        for phrase in self._phrases([*self._text[-1:], *self._chain], most):
            self._suffixes.append((phrase, self._add_suffix(phrase[: self._deepest - len(self._chain)])))

    def add_alternatives(self, alternatives: ListLike[Alternative]) -> None:
        """Add tokens the draft model might have said instead, each with the newest phrase that follows it.

        None goes deeper than the chain: where the target takes chains only, the chain is what it gets.
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
                self._confidence.setdefault(node, alternative.prob)
                self._tree.add_path(following[: len(chain) - place - 1], node, Origin.POOL)

    def add_phrases(self, most: int) -> None:
        """Add phrases behind the newest token, no deeper than the chain."""
        for phrase in self._phrases(self._text, most):
            self._tree.add_path(phrase[: len(self._chain)], origin=Origin.POOL)

    def build(self) -> Proposal:
        """Return all of it; with confidence, the likeliest paths come first."""
        tree = self._tree.build()
        proposal = Proposal(tree, self._chain_nodes, self._suffixes)
        if not self._confidence:
            return proposal
        confidence = [self._confidence_in(node, parent) for node, parent in enumerate(tree.parents)]
        proposal.tree = replace(tree, confidence=confidence)
        return proposal.likeliest_first()

    def _confidence_in(self, node: int, parent: int) -> float:
        in_a_phrase = parent >= len(self._chain_nodes) and parent not in self._confidence
        return self._confidence.get(node, _LATER_OF_A_PHRASE if in_a_phrase else _FIRST_OF_A_PHRASE)

    def _add_suffix(self, phrase: ListLike[int]) -> list[int]:
        """Add a phrase behind the chain as far as there is room, and return its nodes."""
        nodes, parent, tree = [], self._last, self._tree
        for token in phrase:
            if (parent, token) not in tree and len(tree) >= tree.max_nodes:
                break
            parent = tree.add(token, parent, Origin.POOL)
            nodes.append(parent)
        return nodes
