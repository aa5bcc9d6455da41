"""Grow a draft model's tree for one decode step, most likely nodes first.

The tree grows in rounds. In each round, one forward pass of the draft model processes the newest
nodes and their ancestors. For a small model, a forward pass over twenty tokens costs about as much
as a forward pass over one token, so a round extends all newest nodes at once. In each round, the
caller calls `newest` and `question`, runs the forward pass, and calls `learn_answers`. For example:

                         round 1         round 2
                         ========        =================================================
    nodes to extend      the root        7 and 8
    input tokens         the root        the root, 7, 8, and text looked up after 7 and 8
    predicted tokens     7 or 8          1 after 7; 3 or 4 after 8
    nodes of the tree    7, 8            7, 8; 1 below 7; 3 and 4 below 8

`finished` returns the nodes whose paths are likely enough to be verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.origin import Origin
from paceline.core.tree import DraftTree
from paceline.drafters.draft_model.draft_calibration import DraftCalibration
from paceline.drafters.draft_model.settings import LOOKED_UP
from paceline.drafters.shared.trees import likeliest_first


@dataclass(slots=True)
class GuessNode:
    """A node of the draft tree that a draft model is growing.

    Attributes:
        token: Token id.
        parent: Index of the parent node; -1 is the root.
        depth: Depth; 1 is a child of the root.
        path_confidence: Estimated probability that the node and all its ancestors are accepted.
        on_main_path: Whether the node and all its ancestors are first choices: tokens that the
            draft model itself generates.
        first_choice_prob: The draft model's probability of the token if the node is a first choice;
            None for other nodes.
    """

    token: int
    parent: int
    depth: int
    path_confidence: float
    on_main_path: bool
    first_choice_prob: float | None


@dataclass(frozen=True, slots=True)
class DraftForwardInput:
    """The input of a draft forward pass: tree nodes, and text from prompt lookup.

    Attributes:
        tree: Tokens to process, as a tree.
        nodes: For each input position, the corresponding node of the growing tree: -1 for the root,
            and None for a token that is not a node.
        predicted: Positions after which tokens must be predicted, as indices into `nodes`.
    """

    tree: DraftTree
    nodes: list[int | None]
    predicted: list[int]


class NodePrediction(NamedTuple):
    """The draft model's prediction after one node.

    Attributes:
        choice: Id of the token that the draft model generates: its most likely or sampled token.
        likeliest: Most likely token ids, in descending order.
        probs: Probabilities of these tokens.
    """

    choice: int
    likeliest: Sequence[int]
    probs: Sequence[float]


class GuessTree:
    """Grows a draft model's tree, by at least one level per draft forward pass.

    Args:
        calibration: Acceptance rates of first choices, the tokens that the draft model itself
            generates.
        limit: Maximum number of nodes.
        max_depth: Maximum depth.
        branch_threshold: Minimum path confidence for nodes outside the main path. The main path
            consists of first choices.
        stop_threshold: The tree is finished once the path confidences of its newest nodes sum to
            less than this value.
    """

    def __init__(
        self,
        calibration: DraftCalibration,
        limit: int,
        max_depth: int,
        branch_threshold: float,
        stop_threshold: float,
    ) -> None:
        self._calibration, self._limit, self._max_depth = calibration, limit, max_depth
        self._branch_threshold, self._stop_threshold = branch_threshold, stop_threshold
        self._guesses: list[GuessNode] = []
        self._children: dict[int, dict[int, int]] = {}  # token -> node, per extended node

    def token(self, node: int) -> int:
        """Return the token id of a node."""
        return self._guesses[node].token

    def newest(self) -> list[int]:
        """Return the nodes to extend next (-1 is the root).

        The result is empty once the tree is finished.
        """
        if self._limit <= 0 or self._max_depth <= 0:
            return []
        if -1 not in self._children:
            return [-1]
        nodes = [
            n
            for n in self._selected()
            if n not in self._children and self._guesses[n].depth < self._max_depth
        ]
        return (
            nodes
            if nodes
            and sum(self._guesses[n].path_confidence for n in nodes) >= self._stop_threshold
            else []
        )

    def question(
        self,
        newest: Sequence[int],
        look_up: Callable[[list[int], int], list[int]],
        likely: DraftTree,
    ) -> DraftForwardInput:
        """Build the input of the draft forward pass that extends the `newest` nodes.

        Args:
            newest: Nodes after which the draft model predicts tokens.
            look_up: Function (path, length) that returns up to `length` tokens likely to follow the
                tokens of a path.
            likely: Draft tree from the drafter's other sources; may be empty. The first forward
                pass predicts the next token after each node of this tree.
        """
        if -1 in newest and likely.token_ids:
            return DraftForwardInput(
                likely, [-1, *[None] * len(likely)], list(range(1 + len(likely)))
            )
        context = {ancestor for node in newest for ancestor in self.path(node)}
        drafted = sorted(context)
        position_of = {-1: 0} | {node: position for position, node in enumerate(drafted, 1)}
        tokens = [self._guesses[node].token for node in drafted]
        parents = [position_of[self._guesses[node].parent] - 1 for node in drafted]
        nodes: list[int | None] = [-1, *drafted]
        predicted = [position_of[node] for node in newest]
        for node in sorted(newest, key=lambda node: -self._path_confidence(node))[:LOOKED_UP]:
            path, parent = self.path(node), position_of[node] - 1
            for token in look_up(
                [self._guesses[n].token for n in path], self._max_depth - len(path) - 1
            ):
                tokens.append(token)
                parents.append(parent)
                parent = len(tokens) - 1
                nodes.append(None)
                predicted.append(parent + 1)
        return DraftForwardInput(DraftTree(tokens, parents), nodes, predicted)

    def learn_answers(self, question: DraftForwardInput, answers: Sequence[NodePrediction]) -> None:
        """Add the draft model's predictions to the tree as new nodes.

        The prediction after a looked-up token is used only if the draft model has predicted the
        looked-up token itself.

        Args:
            question: Input of the draft forward pass.
            answers: Predictions at the positions in `question.predicted`, in order.
        """
        nodes = list(question.nodes)
        for position, answer in zip(question.predicted, answers, strict=True):
            # A looked-up token becomes a node only if the draft model predicts it.
            if nodes[position] is None:
                above = nodes[question.tree.parents[position - 1] + 1]
                nodes[position] = (
                    None
                    if above is None
                    else self._children.get(above, {}).get(question.tree.token_ids[position - 1])
                )
            node = nodes[position]
            if node is not None and self._worth_keeping(node):
                self._branch(node, answer)

    def finished(self) -> tuple[DraftTree, list[float | None]]:
        """Return the tree and each node's `first_choice_prob`, most likely paths first."""
        selected = self._selected()
        position_of = {-1: -1} | {node: position for position, node in enumerate(selected)}
        guesses = [self._guesses[node] for node in selected]
        confidence = [
            min(1.0, guess.path_confidence / max(self._path_confidence(guess.parent), 1e-9))
            for guess in guesses
        ]
        tokens, parents = (
            [guess.token for guess in guesses],
            [position_of[guess.parent] for guess in guesses],
        )
        tree, before = likeliest_first(
            DraftTree(tokens, parents, confidence=confidence, origins=[Origin.MODEL] * len(guesses))
        )
        return tree, [guesses[node].first_choice_prob for node in before]

    def _branch(self, node: int, answer: NodePrediction) -> None:
        """Add the generated token and other likely tokens as children of `node`."""
        above, on_main_path = (
            self._path_confidence(node),
            node < 0 or self._guesses[node].on_main_path,
        )
        depth = 1 if node < 0 else self._guesses[node].depth + 1
        first, choice = answer.probs[0], answer.choice
        children = self._children[node] = {choice: len(self._guesses)}
        self._guesses.append(
            GuessNode(
                choice,
                node,
                depth,
                above * self._calibration.confidence(first),
                on_main_path,
                first,
            )
        )
        for token, prob in zip(answer.likeliest, answer.probs, strict=True):
            if token != choice and above * prob >= self._branch_threshold:
                children[token] = len(self._guesses)
                self._guesses.append(GuessNode(token, node, depth, above * prob, False, None))

    def _selected(self) -> list[int]:
        """Return the nodes to verify, parents first.

        Nodes on the main path take precedence, followed by the most likely other nodes.
        """
        ranked = sorted(filter(self._worth_keeping, range(len(self._guesses))), key=self._rank)
        return sorted(ranked[: self._limit])

    def _rank(self, node: int) -> tuple[bool, float]:
        guess = self._guesses[node]
        return not guess.on_main_path, -guess.path_confidence

    def _worth_keeping(self, node: int) -> bool:
        return (
            node < 0
            or self._guesses[node].on_main_path
            or self._guesses[node].path_confidence >= self._branch_threshold
        )

    def _path_confidence(self, node: int) -> float:
        return 1.0 if node < 0 else self._guesses[node].path_confidence

    def path(self, node: int) -> list[int]:
        """Return the nodes on the path from a child of the root down to `node`."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self._guesses[node].parent
        return path[::-1]
