"""Draft phrases from the prompt and all outputs, using tries (PIA's "Lookahead").

Zhao, Xie, Liang, Zhuang, Gu 2024, "Lookahead: An Inference Acceleration Framework for Large
Language Model with Lossless Generation Accuracy" (authors' code:
alipay/PainlessInferenceAcceleration). The method differs from Lookahead Decoding (`lookahead`).
docs/methods/pia.md lists the differences between the paper, the authors' code and this
implementation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paceline.core.drafter import Drafter, Outcome
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.pia.options import PiaOptions
from paceline.drafters.pia.settings import OUTPUT_WEIGHT
from paceline.drafters.pia.tries import Children, Node, PhraseTries


class Pia(Drafter):
    """Drafts phrases from the request's prompt and from the outputs of all requests."""

    name = "pia"
    keeps_tokens = True
    Options = PiaOptions

    def __init__(self, options: PiaOptions) -> None:
        self._options = options
        self._tries = PhraseTries(options.max_draft_tokens + 1)
        # By request id: the first text position whose phrase is not yet in the tries.
        self._learned: dict[int, int] = {}

    @classmethod
    def build(cls, options: PiaOptions) -> Pia:
        """Build the drafter from its options."""
        return cls(options)

    def start(self, seq: Request) -> None:
        """Add the prompt's phrases to the tries."""
        self._tries.add_prompt(seq.token_ids[: seq.prompt_length], seq.id)
        self._learned[seq.id] = seq.prompt_length

    def propose(self, seqs: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft trees of phrases that previously followed the newest tokens."""
        return [
            self._draft(seq, min(limit, self._options.max_nodes))
            for seq, limit in zip(seqs, max_nodes, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Add newly completed output phrases to the tries."""
        for outcome in outcomes:
            self._learn(outcome.request, self._tries.depth)

    def stop(self, seq: Request) -> None:
        """Add the output's last phrases to the tries, and remove the prompt's phrases.

        Tries that have grown too large are also shrunk.
        """
        if seq.id in self._learned:
            self._learn(seq, 1)
            del self._learned[seq.id]
            self._tries.forget_prompt(seq.token_ids[: seq.prompt_length], seq.id)
            self._tries.squeeze()

    def _learn(self, seq: Request, shortest: int) -> None:
        """Add new output phrases to the tries.

        Phrases that start within the last `shortest` tokens of the text are not added yet.
        """
        first, end = self._learned[seq.id], len(seq) - shortest
        self._tries.add_output(seq.token_ids, first, end)
        self._learned[seq.id] = max(first, end)

    def _draft(self, seq: Request, limit: int) -> DraftTree:
        """Draft a tree of phrases that previously followed the newest tokens.

        The drafter looks up suffixes of the text, longest first. It uses the first suffix whose
        tree is large enough. The required number of nodes is the smaller of `limit` and the maximum
        branch length. If no tree is that large, the drafter uses the shortest suffix with a match.
        """
        depth = min(self._options.max_draft_tokens, seq.remaining - 1)
        tree = EMPTY_TREE
        if limit < 1 or depth < 1:
            return tree
        for size in range(min(self._options.query_ngram, len(seq)), 0, -1):
            followers = self._tries.following(seq.token_ids[-size:], seq.id)
            tree = Selection(seq.id, limit).tree_below(followers, depth) or tree
            if len(tree) >= min(depth, limit):
                break
        return tree


@dataclass(slots=True)
class Selection:
    """Selects a draft tree from phrases in a request's prompt and in all outputs.

    If the phrases have more than `limit` nodes, the tree consists of two groups of nodes:

    - The nodes that occurred most often in outputs. They fill at most half of the tree.
    - Of all other nodes, those with the highest scores. They fill the rest. The score is a weighted
      sum of the node's occurrences in the prompt and in outputs.

    If several nodes tie for the last places, the first ones in depth-first order are selected.

    Attributes:
        request: Id of the request.
        limit: Maximum number of nodes in the tree.
        tokens: Token id of each selected node.
        parents: Index of each node's parent; -1 for children of the root.
        shares: Confidence of each node: its score, divided by the total score of all children of
            its parent.
        origins: `Origin` of each node.
    """

    request: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)

    def tree_below(self, children: Children, depth: int) -> DraftTree:
        """Return a draft tree of the phrases that start with `children`.

        A node's confidence is its score, divided by the total score of all children of its parent.

        Args:
            children: Trie nodes of the phrases' first tokens, by token.
            depth: Maximum depth of the tree.
        """
        min_output, min_score = self._minima(list(self._counted(children, depth)))
        self._add(children, -1, depth, min_output, min_score)
        tree = DraftTree(self.tokens, self.parents, confidence=self.shares, origins=self.origins)
        return tree if self.tokens else EMPTY_TREE

    def _score(self, node: Node) -> float:
        return (1 - OUTPUT_WEIGHT) * node.inputs.get(self.request, 0) + OUTPUT_WEIGHT * node.output

    def _counted(self, children: Children, depth: int) -> Iterator[tuple[float, float]]:
        """Yield each usable node's number of occurrences in outputs, and its score.

        A node is usable if its path occurred in the request's prompt or in any output.
        """
        for node in children.values():
            if node.known_to(self.request):
                yield node.output, self._score(node)
                if depth > 1:
                    yield from self._counted(node.children, depth - 1)

    def _minima(self, counted: list[tuple[float, float]]) -> tuple[float, float]:
        """Return two thresholds: for a node's occurrences in outputs, and for its score.

        A node that reaches at least one of the two thresholds is selected. The first threshold
        selects the nodes that occurred most often in outputs, up to half of `limit`. The second
        threshold selects the other nodes with the highest scores. If there are at most `limit`
        nodes, both thresholds are 0, so that all nodes are selected.

        Args:
            counted: For each usable node, its number of occurrences in outputs and its score.
        """
        if len(counted) <= self.limit:
            return 0.0, 0.0
        outputs = sorted(
            (node for node in range(len(counted)) if counted[node][0]),
            key=lambda node: -counted[node][0],
        )
        stored = outputs[: self.limit // 2]
        among = set(stored)
        others = sorted(
            (score for node, (_, score) in enumerate(counted) if node not in among), reverse=True
        )
        room = self.limit - len(stored)
        return counted[stored[-1]][0] if stored else math.inf, others[room - 1]

    def _add(
        self, children: Children, parent: int, depth: int, min_output: float, min_score: float
    ) -> None:
        known = [
            (token, node, self._score(node))
            for token, node in children.items()
            if node.known_to(self.request)
        ]
        total = sum(score for _, _, score in known)
        for token, node, score in sorted(known, key=lambda child: -child[2]):
            if len(self.tokens) == self.limit:
                return
            if node.output < min_output and score < min_score:
                continue
            self.tokens.append(token)
            self.parents.append(parent)
            self.shares.append(score / total)
            # All requests share the outputs.
            self.origins.append(Origin.PROMPT if self.request in node.inputs else Origin.POOL)
            if depth > 1:
                self._add(node.children, len(self.tokens) - 1, depth - 1, min_output, min_score)
