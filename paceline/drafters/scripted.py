"""Propose trees from a script, to test an engine or a measurement."""

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
    """The arguments of a `propose` call for one request.

    Attributes:
        sequence: Id of the request.
        token_ids: Tokens of the request at the time of the call.
        max_nodes: Maximum number of nodes in the request's tree.
    """

    sequence: int
    token_ids: list[int]
    max_nodes: int


class ScriptedDrafter(Drafter):
    """Proposes trees from a script, and records all calls and outcomes.

    The class does not import torch.

    Args:
        script: Proposals for the first, second, ... step of every request. Each proposal is a
            `DraftTree` or the token ids of a chain, and is cut to the node limit. After the last
            proposal, trees are empty. The script may also be a function with the signature of
            `Drafter.propose`. The trees that it returns are used unchanged.
        name: Name shown in messages and tables.
    Attributes:
        questions: Recorded arguments of `propose`, one entry per request and step.
        outcomes: Outcomes passed to `observe`, in order.
        open: Ids of requests that have been started but not stopped.

    Example:
        ScriptedDrafter([[5, 6], DraftTree([7, 8], [-1, -1])]) drafts 5 and 6 in the first step, 7
        or 8 in the second step, and nothing afterwards.
    """

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name = name
        self.questions: list[ProposeCall] = []
        self.outcomes: list[Outcome] = []
        self.open: set[int] = set()
        self._propose = script if callable(script) else self._next_of(script)
        self._steps: dict[int, int] = {}

    def start(self, request: Request) -> None:
        """Start a request at the first step of the script."""
        self.open.add(request.id)
        self._steps[request.id] = 0

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Record the call, and return the script's trees for these requests."""
        self.questions += [
            ProposeCall(request.id, list(request.token_ids), limit)
            for request, limit in zip(requests, max_nodes, strict=True)
        ]
        return self._propose(requests, max_nodes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes of the step."""
        self.outcomes += outcomes

    def stop(self, request: Request) -> None:
        """Remove a request; a second call for the same request does nothing."""
        self.open.discard(request.id)
        self._steps.pop(request.id, None)

    def _next_of(self, script: Sequence[DraftTree | Sequence[int]]) -> Propose:
        trees = [
            entry if isinstance(entry, DraftTree) else DraftTree.chain(list(entry))
            for entry in script
        ]

        def propose(requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
            proposed = []
            for request, limit in zip(requests, max_nodes, strict=True):
                step = self._steps[request.id]
                self._steps[request.id] = step + 1
                proposed.append(trees[step].first(limit) if step < len(trees) else EMPTY_TREE)
            return proposed

        return propose
