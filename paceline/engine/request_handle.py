"""What a caller holds of a request that an engine works on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.core.drafter import Outcome
from paceline.core.metrics import Stats
from paceline.core.request import Request
from paceline.draft_budget.drafter_state import DrafterState


@dataclass(eq=False, slots=True)
class RequestHandle:
    """What a caller holds of one request.

    Attributes:
        drafter_state: its drafter, and the statistics of its trees.
        outcomes: steps not yet taken out by the caller; None where it did not ask for them.
        keep_slot: what it has in the cache stays there when it ends, until it is withdrawn.
        batch_invariant: the engine computes it batch-invariantly.
        prefilling: it has tokens to feed before the one it is at.
        started: its drafter knows of it.
        done: nothing more will come.
        error: what ended the request before its time.
        admitted, ended: when it got its place in the batch and when it left, by
            `time.perf_counter`; 0 = not yet.
    """

    request: Request
    drafter_state: DrafterState
    outcomes: deque[Outcome] | None = None
    keep_slot: bool = False
    batch_invariant: bool = False
    prefilling: bool = True
    started: bool = False
    done: bool = False
    error: Exception | None = None
    admitted: float = 0.0
    ended: float = 0.0

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first: by priority, then by age."""
        return self.request.params.priority, self.request.id

    def stats(self) -> Stats:
        """Return the counts so far; seconds from admission to the end, or to now."""
        return Stats.of(
            self.request, (self.ended or time.perf_counter()) - self.admitted, self.batch_invariant
        )


@dataclass(frozen=True, slots=True)
class CallProgress:
    """How far a call is.

    Attributes:
        finished: answers that have ended, of `answers`.
        new_tokens: tokens emitted so far, over all answers.
    """

    finished: int
    answers: int
    new_tokens: int

    @staticmethod
    def of(handles: Sequence[RequestHandle]) -> CallProgress:
        """That of the call that holds `handles`."""
        tokens = sum(len(handle.request) - handle.request.prompt_length for handle in handles)
        return CallProgress(sum(handle.done for handle in handles), len(handles), tokens)


def raise_errors(handles: Iterable[RequestHandle]) -> None:
    """Raise what ended one of `handles` before its time, if anything did."""
    for handle in handles:
        if handle.error is not None:
            raise handle.error
