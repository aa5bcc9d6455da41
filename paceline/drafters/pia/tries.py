"""Store the phrases of prompts and outputs in tries, one per first token.

Each node counts how often its path occurred in the prompt of each running request, and in all
outputs together. A parent's counts are at least as high as those of its children.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Node:
    """A trie node: one token of a phrase, with the counts of the path that ends there.

    Attributes:
        children: Child nodes, by token.
        inputs: Number of occurrences of the path in each request's prompt, by request id. Requests
            without occurrences are omitted.
        output: Number of occurrences of the path in outputs, halved whenever
            `PhraseTries.squeeze` shrinks the trie.
    """

    __slots__ = ("children", "inputs", "output")

    def __init__(self) -> None:
        self.children: Children = {}
        self.inputs: dict[int, int] = {}
        self.output = 0.0

    def known_to(self, request: int) -> bool:
        """Return whether the node's path occurred in the request's prompt or any output."""
        return self.output > 0 or request in self.inputs


Children = dict[int, Node]


@dataclass(slots=True)
class Tree:
    """A trie of the phrases that start with one token.

    Attributes:
        children: Nodes of the phrases' second tokens, by token.
        nodes: Number of nodes.
        outputs: Number of nodes that occurred in outputs.
    """

    children: Children = field(default_factory=dict)
    nodes: int = 0
    outputs: int = 0


@dataclass(frozen=True, slots=True)
class TrieLimits:
    """Limits above which tries are shrunk; the defaults are those of PIA's code.

    Attributes:
        nodes: Maximum number of nodes in a trie. At the end of a request, larger tries are
            squeezed: output counts are halved, and nodes without counts are removed.
        outputs: Maximum number of a trie's nodes that occurred in outputs. Tries above this limit
            are squeezed only if at least `touched` tries have new outputs.
        touched: Minimum number of tries with new outputs for which the limit `outputs` applies.
    """

    nodes: int = 65_536
    outputs: int = 512
    touched: int = 1024


class PhraseTries:
    """Stores phrases in tries, one trie for each first token.

    Args:
        depth: Number of tokens in a phrase, excluding the first token.
        limits: Limits above which tries are shrunk; None means the limits of PIA's code.
    """

    def __init__(self, depth: int, limits: TrieLimits | None = None) -> None:
        self.depth = depth
        self._limits = limits or TrieLimits()
        self._trees: dict[int, Tree] = {}
        # First tokens of the trees to which outputs were added since the last squeeze.
        self._touched: set[int] = set()

    def add_prompt(self, tokens: list[int], request: int) -> None:
        """Count the phrases that start at each position of a request's prompt."""
        for start in range(len(tokens) - 1):
            for node in self._path(tokens, start)[1]:
                node.inputs[request] = node.inputs.get(request, 0) + 1

    def forget_prompt(self, tokens: list[int], request: int) -> None:
        """Remove the counts that `add_prompt` added for a request's prompt."""
        for first in set(tokens[:-1]):
            tree = self._trees[first]
            tree.nodes -= _forget(tree.children, request)
            if not tree.children:
                del self._trees[first]

    def add_output(self, tokens: list[int], first: int, end: int) -> None:
        """Count the output phrases that start at positions `first` to `end` - 1 of a text."""
        for start in range(first, end):
            self._touched.add(tokens[start])
            tree, path = self._path(tokens, start)
            for node in path:
                tree.outputs += node.output == 0
                node.output += 1

    def following(self, phrase: list[int], request: int) -> Children:
        """Return the trie nodes that follow `phrase`; empty if the phrase is unknown.

        A phrase is unknown if it occurred neither in the request's prompt nor in any output.

        Args:
            phrase: At least one token id.
            request: Id of the request.
        """
        tree = self._trees.get(phrase[0])
        children = tree.children if tree is not None else {}
        for token in phrase[1:]:
            node = children.get(token)
            if node is None or not node.known_to(request):
                return {}
            children = node.children
        return children

    def squeeze(self) -> None:
        """Shrink tries that are too large: halve output counts, and remove rare phrases."""
        limits = self._limits
        everything = len(self._touched) >= limits.touched
        for first in sorted(self._touched):
            tree = self._trees.get(first)
            if tree is None:
                continue
            if tree.nodes > limits.nodes or (everything and tree.outputs > limits.outputs):
                tree.nodes, tree.outputs = _halve(tree.children)
                if not tree.children:
                    del self._trees[first]
        if everything:
            self._touched.clear()

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return `Tree.nodes` and `Tree.outputs` of every trie, by first token."""
        return {first: (tree.nodes, tree.outputs) for first, tree in self._trees.items()}

    def _path(self, tokens: list[int], start: int) -> tuple[Tree, list[Node]]:
        """Return the trie and the nodes of the phrase at `start`, creating missing nodes."""
        tree = self._trees.setdefault(tokens[start], Tree())
        children, path = tree.children, []
        for token in tokens[start + 1 : start + 1 + self.depth]:
            node = children.get(token)
            if node is None:
                node = children[token] = Node()
                tree.nodes += 1
            path.append(node)
            children = node.children
        return tree, path


def _forget(children: Children, request: int) -> int:
    """Remove a request's prompt counts below a node.

    Nodes without remaining counts are removed. Return the number of removed nodes.

    Args:
        children: Child nodes of the node, by token.
        request: Id of the request.
    """
    gone = 0
    for token, node in list(children.items()):
        if node.inputs.pop(request, 0):
            gone += _forget(node.children, request)
            if not node.inputs and not node.output:
                del children[token]
                gone += 1
    return gone


def _halve(children: Children) -> tuple[int, int]:
    """Halve the output counts below a node; counts of 1 or less become 0.

    Nodes without remaining counts are removed. Return the number of remaining nodes, and how many
    of them occurred in outputs.
    """
    nodes = outputs = 0
    for token, node in list(children.items()):
        node.output = node.output / 2 if node.output > 1 else 0.0
        if not node.output and not node.inputs:
            del children[token]  # the nodes below occurred no more often
            continue
        below = _halve(node.children)
        nodes, outputs = nodes + 1 + below[0], outputs + (node.output > 0) + below[1]
    return nodes, outputs
