"""The tree a draft model guesses in one step, likeliest guesses first, and how often such guesses came true.

Each draft forward is fed the whole tree so far: a small draft's forward costs much the same for one token as for twenty, so
every guess not yet followed up is, all in one forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.tree import DraftTree

CHOICES = 4  # continuations considered at each node
LOOKED_UP = 2  # guesses behind which text is looked up
_BUCKETS = 10
_PRIOR_WEIGHT = 4  # guesses
_PRIOR_POWER = 0.6  # measured on the embedded pair: first choices of 0.45, 0.65 and 0.85 were right in 0.61, 0.81 and 0.95


class HitRates:
    """How often a draft model's first choice was right, by the probability it gave.

    It is right more often than that probability, above all where the target is greedy and never says its second choice.
    Where little is known, the chance is taken as a power of the probability, which fits such pairs.
    """

    def __init__(self) -> None:
        self._offered = [0] * _BUCKETS
        self._hits = [0] * _BUCKETS

    def chance(self, prob: float) -> float:
        """The chance that a first choice of this probability is right."""
        bucket = _bucket(prob)
        return (self._hits[bucket] + _PRIOR_WEIGHT * math.pow(prob, _PRIOR_POWER)) / (self._offered[bucket] + _PRIOR_WEIGHT)

    def learn(self, tree: DraftTree, first_probs: Seq[float | None], accepted: Seq[int]) -> None:
        """Take in what became of a tree.

        Args:
            first_probs: per node the probability it was given, None where it was no first choice.
        """
        reached = {-1, *accepted}
        for node, (parent, prob) in enumerate(zip(tree.parents, first_probs, strict=True)):
            if prob is not None and parent in reached:
                self._offered[_bucket(prob)] += 1
                self._hits[_bucket(prob)] += node in reached


def _bucket(prob: float) -> int:
    return min(_BUCKETS - 1, int(prob * _BUCKETS))


@dataclass(slots=True)
class Guess:
    """A node: its chance is that of the whole path to it; `main`: first choices all the way, `prob` as a first choice."""

    token: int
    parent: int
    depth: int
    chance: float
    main: bool
    prob: float | None


@dataclass(frozen=True, slots=True)
class Question:
    """What one draft forward is fed: nodes of the tree, then looked-up text behind some of them.

    Attributes:
        nodes: per fed place the tree's node; -1 for the root in front, None for a looked-up token.
        asked: fed places (0 = the root) whose answer is wanted.
    """

    tree: DraftTree
    nodes: list[int | None]
    asked: list[int]


class GuessTree:
    """Grows by one level or more per draft forward.

    Args:
        limit: most nodes; longest: most levels.
        least: nodes below this chance are dropped, but for the first choices.
        stop_below: the tree is finished once the chances of its newest guesses add up to less.
    """

    def __init__(self, rates: HitRates, limit: int, longest: int, least: float, stop_below: float) -> None:
        self._rates, self._limit, self._longest = rates, limit, longest
        self._least, self._stop_below = least, stop_below
        self._guesses: list[Guess] = []
        self._children: dict[int, dict[int, int]] = {}  # of every node the draft was asked about: token -> node

    def newest(self) -> list[int]:
        """Guesses worth a look at what follows them, -1 being the root; none once the tree is finished."""
        if self._limit <= 0 or self._longest <= 0:
            return []
        if -1 not in self._children:
            return [-1]
        nodes = [n for n in self._kept() if n not in self._children and self._guesses[n].depth < self._longest]
        return nodes if nodes and sum(self._guesses[n].chance for n in nodes) >= self._stop_below else []

    def question(self, newest: Seq[int], look_up: Callable[[list[int], int], list[int]]) -> Question:
        """What to feed the draft model in order to learn what follows `newest`.

        Args:
            look_up: (path, length) -> up to so many tokens that may follow the path.
        """
        context = {ancestor for node in newest for ancestor in self._path(node)}
        nodes: list[int | None] = [-1, *sorted(context)]
        place = {node: at for at, node in enumerate(nodes)}
        tokens = [self._guesses[node].token for node in nodes[1:] if node is not None]
        parents = [place[self._guesses[node].parent] - 1 for node in nodes[1:] if node is not None]
        asked = [place[node] for node in newest]
        for node in sorted(newest, key=lambda node: -self._chance(node))[:LOOKED_UP]:
            path, parent = self._path(node), place[node] - 1
            for token in look_up([self._guesses[n].token for n in path], self._longest - len(path) - 1):
                tokens.append(token)
                parents.append(parent)
                parent = len(tokens) - 1
                nodes.append(None)
                asked.append(parent + 1)
        return Question(DraftTree(tokens, parents), nodes, asked)

    def answer(self, question: Question, answers: Seq[tuple[int, Seq[int], Seq[float]]]) -> None:
        """Take in what the draft model said at each place asked about: its choice, its likeliest tokens, their chances."""
        nodes = list(question.nodes)
        for at, (choice, likeliest, probs) in zip(question.asked, answers, strict=True):
            if nodes[at] is None:  # looked-up text counts where the draft model itself would say it
                above = nodes[question.tree.parents[at - 1] + 1]
                nodes[at] = None if above is None else self._children.get(above, {}).get(question.tree.token_ids[at - 1])
            node = nodes[at]
            if node is not None and self._worth_keeping(node):
                self._branch(node, choice, likeliest, probs)

    def finished(self) -> tuple[DraftTree, list[float | None]]:
        """The tree to verify, and per node its probability where it is a first choice."""
        kept = self._kept()
        place = {-1: -1} | {node: at for at, node in enumerate(kept)}
        guesses = [self._guesses[node] for node in kept]
        chances = [guess.chance / max(self._chance(guess.parent), 1e-9) for guess in guesses]
        tree = DraftTree([guess.token for guess in guesses], [place[guess.parent] for guess in guesses], confidence=chances)
        return tree, [guess.prob for guess in guesses]

    def _branch(self, node: int, choice: int, likeliest: Seq[int], probs: Seq[float]) -> None:
        chance, main = self._chance(node), node < 0 or self._guesses[node].main
        depth = 1 if node < 0 else self._guesses[node].depth + 1
        children = self._children[node] = {choice: len(self._guesses)}
        self._guesses.append(Guess(choice, node, depth, chance * self._rates.chance(probs[0]), main, probs[0]))
        for token, prob in zip(likeliest, probs, strict=True):
            if token != choice and chance * prob >= self._least:
                children[token] = len(self._guesses)
                self._guesses.append(Guess(token, node, depth, chance * prob, False, None))

    def _kept(self) -> list[int]:
        """The nodes to verify, parents first: first choices all the way, then the likeliest."""
        guesses = self._guesses
        ranked = sorted(filter(self._worth_keeping, range(len(guesses))), key=lambda n: (not guesses[n].main, -guesses[n].chance))
        return sorted(ranked[: self._limit])

    def _worth_keeping(self, node: int) -> bool:
        return node < 0 or self._guesses[node].main or self._guesses[node].chance >= self._least

    def _chance(self, node: int) -> float:
        return 1.0 if node < 0 else self._guesses[node].chance

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self._guesses[node].parent
        return path[::-1]
