"""Jacobi decoding: guess the whole rest of the answer, and let every forward replace each guess by
what the target says there.

The answer y_1 .. y_m solves m equations y_i = argmax(y_i | y_1 .. y_(i-1), prompt). Jacobi
iteration starts from random guesses and evaluates all equations at once, each with the guesses of
the iteration before (Santilli et al. 2023; Algorithm 2 of Fu et al. 2024, "Lookahead Decoding"). A
guess is final once all before it are, so each forward settles at least one token and every further
one whose guess had become right. Where tokens are sampled the guesses are still the target's
arg-max.

With `block=B` it is Gauss-Seidel-Jacobi (Song et al. 2021, "Accelerating feedforward computation
via parallel nonlinear equation solving"; "PGJ" in table 6 of Fu et al.): the answer is cut into
blocks of B tokens counted from its first one, solved one after the other, each by Jacobi iteration
given the final tokens before it. A block has B equations, whose inputs are the token before the
block and the block's first B - 1 tokens. Hence a step with k tokens of the block left proposes k -
1 nodes, feeds k tokens, and its bonus is at most the block's last token: no step reaches into the
next block, which starts from random guesses of its own. B = 1 is plain decoding, and a block as
long as the answer is Algorithm 2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.drafter import Drafter, Outcome
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.shared.file_options import JacobiOptions


@dataclass(slots=True)
class _Iterate:
    """Where the iteration of one sequence stands.

    Attributes:
        random: draws the initial guesses.
        guesses: for the places right behind the newest token, in order; places beyond have none
            yet.
    """

    random: random.Random
    guesses: list[int] = field(default_factory=list)


class Jacobi(Drafter):
    """A chain of guesses: lossless and seed-identical at any temperature."""

    name = "jacobi"
    needs_predictions = True
    Options = JacobiOptions

    def __init__(self, options: JacobiOptions) -> None:
        self._options = options
        self._iterates: dict[int, _Iterate] = {}

    @classmethod
    def build(cls, options: JacobiOptions) -> Jacobi:
        """Build it from its options."""
        return cls(options)

    def start(self, request: Request) -> None:
        """Begin without guesses, and with a source of them that depends on the request's seed
        only.
        """
        self._iterates[request.id] = _Iterate(random.Random(request.params.seed))

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return the guesses up to the last token but one of the block, as many as fit; new
        places get random prompt tokens.
        """
        trees = []
        for request, limit in zip(requests, max_nodes, strict=True):
            length = min(limit, self._unsolved(request) - 1)
            iterate = self._iterates[request.id]
            while len(iterate.guesses) < length:
                iterate.guesses.append(
                    request.token_ids[iterate.random.randrange(request.prompt_length)]
                )
            chain = (
                DraftTree.chain(iterate.guesses[:length], origins=[Origin.WINDOW] * length)
                if length > 0
                else EMPTY_TREE
            )
            trees.append(chain)
        return trees

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Replace every guess that was evaluated, and drop those whose places are taken now."""
        for outcome in outcomes:
            iterate = self._iterates[outcome.request.id]
            answers = _answers_along(iterate.guesses, outcome)
            iterate.guesses = [*answers, *iterate.guesses[len(answers) :]][
                len(outcome.new_token_ids) :
            ]

    def stop(self, request: Request) -> None:
        """Drop the guesses."""
        self._iterates.pop(request.id, None)

    def _unsolved(self, request: Request) -> int:
        """Return how many tokens are left of the block that the next one belongs to."""
        block = self._options.block
        if block is None:
            return request.remaining
        return min(request.remaining, block - (len(request) - request.prompt_length) % block)


def _answers_along(guesses: list[int], outcome: Outcome) -> list[int]:
    """Return the target's tokens after the root and after each guess, as far as the verified
    tree holds them as a branch.
    """
    child = outcome.tree.edges()
    answers, node = [outcome.target_argmax[0]], -1
    for guess in guesses:
        found = child.get((node, guess))
        if found is None:
            break
        node = found
        answers.append(outcome.target_argmax[node + 1])
    return answers
