"""Drafter that sometimes breaks its contract, in every way.

Its name is "tests.support.faulty_drafter:Faulty:rate=0.2".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.drafters import create


@dataclass(frozen=True, slots=True)
class FaultyOptions:
    """Options of the faulty drafter.

    Attributes:
        datastore: Datastore of the wrapped `sssd` drafter.
        update_datastore: Whether `sssd` updates the datastore.
        rate: Share of calls that fail.
        kind: Name of the fault, or "any".
    """

    datastore: str | None = None
    update_datastore: bool = False
    rate: float = 0.2
    kind: str = "any"


def _raises(trees: list[DraftTree]) -> Any:
    raise RuntimeError("a fault that was ordered")


KINDS: dict[str, Callable[[list[DraftTree]], Any]] = {
    "raises": _raises,
    "none": lambda trees: None,
    "fewer": lambda trees: trees[:-1],
    "too_many": lambda trees: [DraftTree.chain([3] * 500, confidence=[0.9] * 500) for _ in trees],
    "beyond": lambda trees: [DraftTree.chain([10**9]) for _ in trees],
    "negative": lambda trees: [DraftTree.chain([-1]) for _ in trees],
    "arrays": lambda trees: [DraftTree(np.array([3, 4]), np.array([-1, 0])) for _ in trees],  # type: ignore[arg-type]
    "circle": lambda trees: [DraftTree([3, 4], [1, 0]) for _ in trees],
    "lists": lambda trees: [[3, 4] for _ in trees],
    "nan": lambda trees: [DraftTree.chain([3, 4], confidence=[float("nan"), 7.0]) for _ in trees],
    "memory": lambda trees: (_ for _ in ()).throw(MemoryError("ordered")),
}


class Faulty(DelegatingDrafter):
    """Drafter that wraps `sssd` and injects faults."""

    Options = FaultyOptions

    def __init__(self, options: FaultyOptions) -> None:
        super().__init__(
            create("sssd", datastore=options.datastore, update_datastore=options.update_datastore)
        )
        self.name = "faulty"
        self._options = options
        self._random = random.Random(0)

    @classmethod
    def build(cls, options: FaultyOptions) -> Faulty:
        return cls(options)

    def start(self, request: Request) -> None:
        self._maybe_fail()
        super().start(request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        trees = super().propose(requests, max_nodes)
        if self._random.random() >= self._options.rate:
            return trees
        kind = self._random.choice([*KINDS]) if self._options.kind == "any" else self._options.kind
        found: list[DraftTree] = KINDS[kind](trees)
        return found

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._maybe_fail()
        super().observe(outcomes)

    def stop(self, request: Request) -> None:
        super().stop(request)
        self._maybe_fail()

    def _maybe_fail(self) -> None:
        if self._options.kind == "any" and self._random.random() < self._options.rate / 4:
            raise RuntimeError("a fault that was ordered")
