"""Define the handle through which callers and the engine track a request."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.core.drafter import Outcome
from paceline.core.metrics import Stats
from paceline.core.request import Request
from paceline.draft_budget.drafts import DrafterState


@dataclass(eq=False, slots=True)
class RequestHandle:
    """The state of one request in an engine.

    Attributes:
        request: The request.
        drafter_state: The request's drafter, with statistics on its draft trees.
        outcomes: Outcomes that the caller has not collected yet; None if the caller does not
            collect outcomes.
        keep_slot: Whether the request keeps its cache slot after its end, until the request is
            withdrawn.
        batch_invariant: Whether batch invariance is on for the request.
        prefilling: Whether some prompt tokens have not been computed yet.
        started: Whether the drafter has been started for the request.
        done: Whether the request has ended, so that no outcome follows.
        error: Error that ended the request early, or None.
        admitted: Time of admission to the batch, from `time.perf_counter`; 0 if not yet admitted.
        ended: Time at which the request left the batch; 0 if still open.
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
        """Return the request's sort key (priority, age); lower keys are admitted first."""
        return self.request.params.priority, self.request.id

    def stats(self) -> Stats:
        """Return the request's statistics so far.

        The duration runs from admission until the request ended or, if it has not ended, until
        now.
        """
        return Stats.of(
            self.request, (self.ended or time.perf_counter()) - self.admitted, self.batch_invariant
        )


@dataclass(frozen=True, slots=True)
class CallProgress:
    """Progress of a call to `generate`.

    Attributes:
        finished: Number of finished answers.
        answers: Total number of answers in the call.
        new_tokens: Number of tokens emitted so far, over all answers.
    """

    finished: int
    answers: int
    new_tokens: int

    @staticmethod
    def of(handles: Sequence[RequestHandle]) -> CallProgress:
        """Compute the progress of a call from the handles of its requests."""
        tokens = sum(len(handle.request) - handle.request.prompt_length for handle in handles)
        return CallProgress(sum(handle.done for handle in handles), len(handles), tokens)


def raise_errors(handles: Iterable[RequestHandle]) -> None:
    """Raise the first error that ended a request early."""
    for handle in handles:
        if handle.error is not None:
            raise handle.error
