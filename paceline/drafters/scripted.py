"""A drafter that proposes what a script says: to test an engine, a wrapper or a measurement
without a method in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree

Propose = Callable[[Sequence[Request], list[int]], list[DraftTree]]
Script = Propose | Sequence[DraftTree | Sequence[int]]


@dataclass(frozen=True, slots=True)
class ProposeCall:
    """What `propose` was asked for one sequence: its id, its tokens at that time, and its node
    budget.
    """

    sequence: int
    token_ids: list[int]
    max_nodes: int


class ScriptedDrafter(Drafter):
    """Proposes what a script says, and records what it was asked and what the target answered.
    Needs no torch.

    Args:
        script: the proposals of the first, second, ... step of every sequence, each a `DraftTree`
            or the token ids of a chain, cut to the node budget; afterwards trees are empty. Or a
            function with the arguments and the result of `Drafter.propose`, whose trees are passed
            on as they are.
        name: the word in messages and tables.
    Attributes:
        questions: what `propose` was asked, one per sequence and step.
        outcomes: what `observe` was given, in order.
        open: ids of the sequences that were started and not stopped.

    Example:
        ScriptedDrafter([[5, 6], DraftTree([7, 8], [-1, -1])]) guesses 5 then 6, in the next step 7
        or 8, and nothing after.
    """

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name = name
        self.questions: list[ProposeCall] = []
        self.outcomes: list[Outcome] = []
        self.open: set[int] = set()
        self._propose = script if callable(script) else self._next_of(script)
        self._steps: dict[int, int] = {}

    def start(self, request: Request) -> None:
        """Open the sequence at the first step of the script."""
        self.open.add(request.id)
        self._steps[request.id] = 0

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return what the script says for these sequences."""
        self.questions += [
            ProposeCall(request.id, list(request.token_ids), limit)
            for request, limit in zip(requests, max_nodes, strict=True)
        ]
        return self._propose(requests, max_nodes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes."""
        self.outcomes += outcomes

    def stop(self, request: Request) -> None:
        """Close the sequence; once more does nothing."""
        self.open.discard(request.id)
        self._steps.pop(request.id, None)

    def _next_of(self, script: Sequence[DraftTree | Sequence[int]]) -> Propose:
        trees = [
            one if isinstance(one, DraftTree) else DraftTree.chain(list(one)) for one in script
        ]

        def propose(requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
            proposed = []
            for request, limit in zip(requests, max_nodes, strict=True):
                step = self._steps[request.id]
                self._steps[request.id] = step + 1
                proposed.append(trees[step].first(limit) if step < len(trees) else EMPTY_TREE)
            return proposed

        return propose
