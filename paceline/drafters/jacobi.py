"""Jacobi decoding: guess the rest of the answer, and refine it in parallel.

The answer y_1 .. y_m solves the equations y_i = argmax p(y | y_1 .. y_(i-1), prompt). Jacobi
iteration (Santilli et al. 2023; algorithm 2 of Fu et al. 2024, "Lookahead Decoding") starts from
random guesses. Each iteration is a forward pass that evaluates all equations at once, using the
guesses from the previous iteration. A forward pass always determines at least the first undecided
token, so it yields at least one token. Guesses are the target's most likely tokens, even for
sampled requests.

With `block=B`, the method is Gauss-Seidel-Jacobi (Song et al. 2021; "PGJ" in table 6 of Fu et
al.). The answer is divided into blocks of B tokens. Jacobi iteration solves the blocks one after
another. If k tokens of a block are left, a step proposes k - 1 nodes and processes k tokens, so
no step extends into the next block. With B = 1, the method is plain decoding. If one block covers
the whole answer, the method is algorithm 2.
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
    """The current guesses of one request.

    Attributes:
        random: Random generator for the initial guesses.
        guesses: Guesses for the positions after the newest token, in order.
    """

    random: random.Random
    guesses: list[int] = field(default_factory=list)


class Jacobi(Drafter):
    """Drafts a chain of deterministic guesses that each forward pass refines."""

    name = "jacobi"
    keeps_tokens = True
    needs_predictions = True
    Options = JacobiOptions

    def __init__(self, options: JacobiOptions) -> None:
        self._options = options
        self._iterates: dict[int, _Iterate] = {}

    @classmethod
    def build(cls, options: JacobiOptions) -> Jacobi:
        """Build the drafter from its options."""
        return cls(options)

    def start(self, request: Request) -> None:
        """Initialise the request's guesses, and seed its random generator."""
        self._iterates[request.id] = _Iterate(random.Random(request.params.seed))

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return a chain of guesses that ends before the last token of the block.

        A position without a guess is filled with a random token from the prompt.
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
        """Update the guesses from the target's predictions.

        Guesses for generated positions are dropped.
        """
        for outcome in outcomes:
            iterate = self._iterates[outcome.request.id]
            answers = _answers_along(iterate.guesses, outcome)
            iterate.guesses = [*answers, *iterate.guesses[len(answers) :]][
                len(outcome.new_token_ids) :
            ]

    def stop(self, request: Request) -> None:
        """Discard the guesses of a request that has ended."""
        self._iterates.pop(request.id, None)

    def _unsolved(self, request: Request) -> int:
        """Return how many tokens of the current block have not been generated yet."""
        block = self._options.block
        if block is None:
            return request.remaining
        return min(request.remaining, block - (len(request) - request.prompt_length) % block)


def _answers_along(guesses: list[int], outcome: Outcome) -> list[int]:
    """Return the target's predictions after the root and along the chain of guesses.

    The result ends at the first guess that the verified tree does not contain.
    """
    child = outcome.tree.edges()
    answers, node = [outcome.target_argmax[0]], -1
    for guess in guesses:
        following = child.get((node, guess))
        if following is None:
            break
        node = following
        answers.append(outcome.target_argmax[node + 1])
    return answers
