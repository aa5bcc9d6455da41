"""Drafters that record their proposals, or that propose trees known in advance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from paceline import Drafter, DraftTree, Outcome, ScriptedDrafter
from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.request import Request
from paceline.core.tree_builder import TreeBuilder


class NotingDrafter(DelegatingDrafter):
    """Drafter wrapper that records proposals, their texts, and accepted lengths."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.notes: list[tuple[Request, list[int], DraftTree]] = []
        self.accepted: list[int] = []

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        trees = super().propose(requests, max_nodes)
        self.notes += [
            (request, list(request.token_ids), tree)
            for request, tree in zip(requests, trees, strict=True)
        ]
        return trees

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self.accepted += [len(outcome.accepted) for outcome in outcomes]
        super().observe(outcomes)


def draft_room(request: Request, tokens: list[int]) -> int:
    """Return how many tokens may be drafted; the last one is the target's."""
    return request.max_length - len(tokens) - 1


class ScriptedTree(ScriptedDrafter):
    """Drafter that hides each correct token among wrong siblings.

    The draft is correct down to a depth that varies from step to step.
    """

    def __init__(
        self, answers: Mapping[tuple[int, ...], Sequence[int]], vocab: int, seed: int = 0
    ) -> None:
        super().__init__(
            lambda requests, max_nodes: [
                self._tree(request, limit)
                for request, limit in zip(requests, max_nodes, strict=True)
            ]
        )
        self._answers = answers
        self._vocab = vocab
        self._random = random.Random(seed)

    @property
    def side_branches(self) -> int:
        """Return how many accepted paths are not the first nodes of their tree."""
        return sum(
            outcome.accepted != list(range(len(outcome.accepted))) for outcome in self.outcomes
        )

    def _tree(self, request: Request, limit: int) -> DraftTree:
        rest = self._answers[tuple(request.token_ids[: request.prompt_length])][
            len(request.output_ids) :
        ]
        builder = TreeBuilder(limit)
        parent, right = -1, self._random.randrange(5)
        for level in range(4):
            true = rest[level] if level < len(rest) else 0
            wrong = {token for token in self._random.sample(range(self._vocab), 2) if token != true}
            for token in list(wrong)[: self._random.randrange(3)]:
                builder.add_path([token, *self._random.sample(range(self._vocab), 2)], parent)
            if level >= right:
                break
            parent = builder.add_path([true], parent)
        return builder.build()
