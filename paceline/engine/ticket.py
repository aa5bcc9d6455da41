"""What a caller holds of a request that an engine works on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass

from paceline.engine.drafter import Outcome
from paceline.engine.drafting import Drafting
from paceline.engine.metrics import Stats
from paceline.engine.sequence import Sequence


@dataclass(eq=False, slots=True)
class Ticket:
    """What a caller holds of one request.

    Attributes:
        drafting: its drafter.
        outcomes: steps not yet taken out by the caller; None where it did not ask for them.
        keep_slot: what it has in the cache stays there when it ends, until it is withdrawn.
        batch_invariant: the engine computes it batch-invariantly.
        prefilling: it has tokens to feed before the one it is at.
        started: its drafter knows of it.
        done: nothing more will come.
        error: what ended the request before its time.
        admitted, ended: when it got its place in the batch and when it left, by `time.perf_counter`; 0 = not yet.
    """

    seq: Sequence
    drafting: Drafting
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
        return self.seq.params.priority, self.seq.id

    def stats(self) -> Stats:
        """Return the counts so far; seconds from admission to the end, or to now."""
        return Stats.of(self.seq, (self.ended or time.perf_counter()) - self.admitted, self.batch_invariant)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call is.

    Attributes:
        finished: answers that have ended, of `answers`.
        new_tokens: tokens emitted so far, over all answers.
    """

    finished: int
    answers: int
    new_tokens: int

    @staticmethod
    def of(tickets: ListLike[Ticket]) -> Progress:
        """That of the call that holds `tickets`."""
        tokens = sum(len(ticket.seq) - ticket.seq.prompt_length for ticket in tickets)
        return Progress(sum(ticket.done for ticket in tickets), len(tickets), tokens)


def raise_errors(tickets: Iterable[Ticket]) -> None:
    """Raise what ended one of `tickets` before its time, if anything did."""
    for ticket in tickets:
        if ticket.error is not None:
            raise ticket.error
