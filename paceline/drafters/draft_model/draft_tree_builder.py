"""The tree a draft model guesses in one step, likeliest guesses first.

Each draft forward is fed the whole tree so far: a small draft's forward costs much the same for one
token as for twenty, so every guess not yet followed up is, all in one forward. One round is
`newest`, `question`, the forward, and `learn_answers`:

    newest()       [-1]                        [7, 8]
    question()     root                        root -> 7, root -> 8; and text looked up behind the
    likeliest the draft      after the root: 7, or 8     after 7: 1;  after 8: 3, or 4
    the tree       7, 8                        7 -> 1,  8 -> 3,  8 -> 4

`finished` keeps the nodes worth verifying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.origin import Origin
from paceline.core.tree import DraftTree
from paceline.drafters.draft_model.draft_calibration import DraftCalibration
from paceline.drafters.shared.trees import likeliest_first

CHOICES = 4  # continuations considered at each node
LOOKED_UP = 2  # guesses behind which text is looked up


@dataclass(slots=True)
class GuessNode:
    """A node.

    Attributes:
        token: its id.
        parent: its parent's node, -1 = the root.
        depth: 1 for a child of the root.
        path_confidence: estimated probability that it and all nodes above it are accepted.
        on_main_path: whether it and all nodes above it are first choices.
        first_choice_prob: the probability the draft model gave it, None where it is no first
            choice.
    """

    token: int
    parent: int
    depth: int
    path_confidence: float
    on_main_path: bool
    first_choice_prob: float | None


@dataclass(frozen=True, slots=True)
class DraftForwardInput:
    """What one draft forward is fed: nodes of the tree, then looked-up text behind some of them.

    Attributes:
        tree: what is fed, as a tree.
        nodes: per fed place the guess tree's node; -1 for the root in front, None for a looked-up
            token.
        asked: fed places (0 = the root) whose answer is wanted.
    """

    tree: DraftTree
    nodes: list[int | None]
    asked: list[int]


class NodePrediction(NamedTuple):
    """What the draft model says after one place.

    Attributes:
        choice: the token it chooses.
        likeliest: its likeliest tokens, likeliest first.
        probs: their probabilities.
    """

    choice: int
    likeliest: Sequence[int]
    probs: Sequence[float]


class GuessTree:
    """Grows by one level or more per draft forward.

    Args:
        rates: how often first choices came true so far.
        limit: most nodes.
        longest: most levels.
        branch_above: nodes whose path confidence is below are dropped, but for those on the main
            path.
        stop_below: the tree is finished once the path confidences of its newest guesses add up to
            less.
    """

    def __init__(
        self,
        rates: DraftCalibration,
        limit: int,
        longest: int,
        branch_above: float,
        stop_below: float,
    ) -> None:
        self._rates, self._limit, self._longest = rates, limit, longest
        self._branch_above, self._stop_below = branch_above, stop_below
        self._guesses: list[GuessNode] = []
        self._children: dict[
            int, dict[int, int]
        ] = {}  # of every node the draft was asked about: token -> node

    def newest(self) -> list[int]:
        """Return the nodes to ask about, -1 being the root; none once the tree is finished."""
        if self._limit <= 0 or self._longest <= 0:
            return []
        if -1 not in self._children:
            return [-1]
        nodes = [
            n
            for n in self._kept()
            if n not in self._children and self._guesses[n].depth < self._longest
        ]
        return (
            nodes
            if nodes and sum(self._guesses[n].path_confidence for n in nodes) >= self._stop_below
            else []
        )

    def question(
        self,
        newest: Sequence[int],
        look_up: Callable[[list[int], int], list[int]],
        likely: DraftTree,
    ) -> DraftForwardInput:
        """Return what to feed the draft model in order to learn what follows `newest`.

        Args:
            look_up: (path, length) -> up to so many tokens that may follow the path.
            likely: what others guess behind the root; what the draft model says to all of that is
                known after the first forward.
        """
        if -1 in newest and likely.token_ids:
            return DraftForwardInput(
                likely, [-1, *[None] * len(likely)], list(range(1 + len(likely)))
            )
        context = {ancestor for node in newest for ancestor in self._path(node)}
        fed = sorted(context)
        place = {-1: 0} | {node: at for at, node in enumerate(fed, 1)}
        tokens = [self._guesses[node].token for node in fed]
        parents = [place[self._guesses[node].parent] - 1 for node in fed]
        nodes: list[int | None] = [-1, *fed]
        asked = [place[node] for node in newest]
        for node in sorted(newest, key=lambda node: -self._path_confidence(node))[:LOOKED_UP]:
            path, parent = self._path(node), place[node] - 1
            for token in look_up(
                [self._guesses[n].token for n in path], self._longest - len(path) - 1
            ):
                tokens.append(token)
                parents.append(parent)
                parent = len(tokens) - 1
                nodes.append(None)
                asked.append(parent + 1)
        return DraftForwardInput(DraftTree(tokens, parents), nodes, asked)

    def learn_answers(self, question: DraftForwardInput, answers: Sequence[NodePrediction]) -> None:
        """Take in what the draft model said at each place asked about, in the order of
        `question.asked`.
        """
        nodes = list(question.nodes)
        for at, answer in zip(question.asked, answers, strict=True):
            if nodes[at] is None:  # looked-up text counts where the draft model itself would say it
                above = nodes[question.tree.parents[at - 1] + 1]
                nodes[at] = (
                    None
                    if above is None
                    else self._children.get(above, {}).get(question.tree.token_ids[at - 1])
                )
            node = nodes[at]
            if node is not None and self._worth_keeping(node):
                self._branch(node, answer)

    def finished(self) -> tuple[DraftTree, list[float | None]]:
        """Return the tree to verify, likeliest paths first, and per node its probability where
        it is a first choice.
        """
        kept = self._kept()
        place = {-1: -1} | {node: at for at, node in enumerate(kept)}
        guesses = [self._guesses[node] for node in kept]
        confidence = [
            min(1.0, guess.path_confidence / max(self._path_confidence(guess.parent), 1e-9))
            for guess in guesses
        ]
        tokens, parents = (
            [guess.token for guess in guesses],
            [place[guess.parent] for guess in guesses],
        )
        tree, before = likeliest_first(
            DraftTree(tokens, parents, confidence=confidence, origins=[Origin.MODEL] * len(guesses))
        )
        return tree, [guesses[node].first_choice_prob for node in before]

    def _branch(self, node: int, answer: NodePrediction) -> None:
        """Add the choice below `node`, and the other likely tokens."""
        above, on_main_path = (
            self._path_confidence(node),
            node < 0 or self._guesses[node].on_main_path,
        )
        depth = 1 if node < 0 else self._guesses[node].depth + 1
        first, choice = answer.probs[0], answer.choice
        children = self._children[node] = {choice: len(self._guesses)}
        self._guesses.append(
            GuessNode(
                choice, node, depth, above * self._rates.confidence(first), on_main_path, first
            )
        )
        for token, prob in zip(answer.likeliest, answer.probs, strict=True):
            if token != choice and above * prob >= self._branch_above:
                children[token] = len(self._guesses)
                self._guesses.append(GuessNode(token, node, depth, above * prob, False, None))

    def _kept(self) -> list[int]:
        """Return the nodes to verify, parents first: the main path, then the likeliest."""
        ranked = sorted(filter(self._worth_keeping, range(len(self._guesses))), key=self._rank)
        return sorted(ranked[: self._limit])

    def _rank(self, node: int) -> tuple[bool, float]:
        guess = self._guesses[node]
        return not guess.on_main_path, -guess.path_confidence

    def _worth_keeping(self, node: int) -> bool:
        return (
            node < 0
            or self._guesses[node].on_main_path
            or self._guesses[node].path_confidence >= self._branch_above
        )

    def _path_confidence(self, node: int) -> float:
        return 1.0 if node < 0 else self._guesses[node].path_confidence

    def _path(self, node: int) -> list[int]:
        """Return the nodes from below the root down to `node`."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self._guesses[node].parent
        return path[::-1]
