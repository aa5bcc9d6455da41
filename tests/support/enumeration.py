"""Exact distributions of drafting and verification, as fractions over four tokens.

The draws of a drafter and those of verification form one random experiment. `Oracle` runs it once
for every sequence of outcomes, each with its exact probability. The result is the distribution of
the emitted tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from paceline import DraftTree
from paceline.verification.rules import follow, traverse

VOCAB = range(4)
LENGTH = 3  # number of tokens that are compared
EOS = 3
Law = dict[tuple[int, ...], Fraction]
Walk = Callable[..., tuple[list[int], list[int]]]


def dist(*weights: int) -> Any:
    """Return a distribution over the four tokens."""
    return np.array([Fraction(weight, sum(weights)) for weight in weights], dtype=object)


def target(context: tuple[int, ...]) -> Any:
    """Return the target's distribution after `context`: it varies, and has zeros."""
    last = context[-1] if context else 0
    return (dist(4, 3, 2, 1), dist(0, 1, 5, 2), dist(3, 3, 0, 1), dist(1, 2, 3, 4))[
        (last + len(context)) % 4
    ]


def draft(context: tuple[int, ...]) -> Any:
    """Return the drafter's distribution after `context`, far from the target's."""
    last = context[-1] if context else 0
    return (dist(1, 5, 1, 2), dist(2, 2, 1, 0), dist(0, 1, 4, 3), dist(5, 0, 1, 1))[
        (2 * last + len(context)) % 4
    ]


class Oracle:
    """Source of randomness along one path of choices; `enumerate` visits all."""

    def __init__(self) -> None:
        self._script: list[int] = []
        self._open: list[int] = []  # untried outcomes of each choice
        self._count = 0
        self.chance = Fraction(1)

    def choose(self, chances: list[Fraction]) -> int:
        """Return the index of one outcome; impossible ones are never chosen."""
        possible = [answer for answer, chance in enumerate(chances) if chance > 0]
        if self._count == len(self._script):
            self._script.append(0)
            self._open.append(len(possible) - 1)
        answer = possible[self._script[self._count]]
        self._count += 1
        self.chance *= chances[answer]
        return answer

    def draw(self, weights: Any) -> int:
        return self.choose(list(weights))

    def coin(self, chance: Fraction) -> bool:
        sure = min(Fraction(1), chance)
        return self.choose([1 - sure, sure]) == 1

    def enumerate(self, experiment: Callable[[Oracle], tuple[int, ...]]) -> Law:
        """Return the exact distribution of the result of `experiment`."""
        law: Law = defaultdict(Fraction)
        while True:
            self._count, self.chance = 0, Fraction(1)
            law[experiment(self)] += self.chance
            while self._open and self._open[-1] == 0:
                self._open.pop()
                self._script.pop()
            if not self._open:
                return dict(law)
            self._open[-1] -= 1
            self._script[-1] += 1


def ended(run: list[int]) -> bool:
    """Return whether a run ends at the EOS token or at the length limit."""
    return bool(run) and (run[-1] == EOS or len(run) == LENGTH)


def path_to(tree: DraftTree, node: int) -> tuple[int, ...]:
    tokens: list[int] = []
    while node >= 0:
        tokens.insert(0, tree.token_ids[node])
        node = tree.parents[node]
    return tuple(tokens)


def complete(oracle: Oracle, run: list[int]) -> tuple[int, ...]:
    """Complete a run by plain decoding, so that different runs are comparable."""
    while not ended(run):
        run = [*run, oracle.draw(target(tuple(run)))]
    return tuple(run)


def emitted(propose: Callable[[Oracle], DraftTree], walk: Walk = traverse) -> Law:
    """Return the distribution of the next tokens under verification by rejection."""

    def experiment(oracle: Oracle) -> tuple[int, ...]:
        tree = propose(oracle)
        accepted, run = walk(
            tree,
            lambda node: target(path_to(tree, node)),
            lambda node, chance: oracle.coin(chance),
            lambda depth, weights: oracle.draw(weights),
            ended,
        )
        assert [tree.token_ids[node] for node in accepted] == run[: len(accepted)]
        assert len(run) == len(accepted) + (not ended(run) or len(run) > len(accepted))
        return complete(oracle, run)

    return Oracle().enumerate(experiment)


def followed(propose: Callable[[Oracle], DraftTree]) -> Law:
    """Return the distribution of the next tokens when target draws select a path."""

    def experiment(oracle: Oracle) -> tuple[int, ...]:
        tree = propose(oracle)
        _, run = follow(tree, lambda node: oracle.draw(target(path_to(tree, node))), ended)
        return complete(oracle, run)

    return Oracle().enumerate(experiment)


PLAIN = Oracle().enumerate(lambda oracle: complete(oracle, []))


class GrowingTree:
    """Draft tree under construction, with the random choices of a drafter."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.probs: list[Any] = []

    def add(self, token: int, parent: int, probs: Any = None) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.probs.append(probs)
        return len(self.tokens) - 1

    def context(self, node: int) -> tuple[int, ...]:
        return path_to(self.build(), node)

    def draw(self, parent: int) -> int:
        probs = draft(self.context(parent))
        return self.add(self.oracle.draw(probs), parent, probs)

    def draw_two(self, parent: int, renormalise: bool = True) -> list[int]:
        """Draw two siblings, the second without replacement."""
        first = self.draw(parent)
        rest = self.probs[first] + 0
        rest[self.tokens[first]] = Fraction(0)
        drawn_from = rest / rest.sum()
        reported = drawn_from if renormalise else self.probs[first]
        return [first, self.add(self.oracle.draw(drawn_from), parent, reported)]

    def guess(self, parent: int, *tokens: int) -> list[int]:
        """Add guesses that differ from the existing siblings."""
        there = {
            token for token, other in zip(self.tokens, self.parents, strict=True) if other == parent
        }
        return [self.add(token, parent) for token in tokens if token not in there]

    def build(self) -> DraftTree:
        return DraftTree(self.tokens, self.parents, self.probs)
