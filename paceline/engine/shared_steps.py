"""Run decode steps in the threads of callers that wait for answers.

The engine starts no thread. A caller that waits for an answer runs steps for all callers
(`advance`), and takes turns with other waiting threads. The requests of all callers therefore share
forward passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.core.drafter import Outcome
from paceline.engine.keyboard_interrupts import interrupts_held
from paceline.engine.request_handle import RequestHandle, raise_errors
from paceline.engine.scheduler import Scheduler
from paceline.engine.turn import Turn

if TYPE_CHECKING:
    from paceline.engine.parallel.model import ParallelLM
    from paceline.engine.step_runner import StepRunner


class SharedSteps(ABC):
    """Lets a waiting caller run steps for all callers.

    `Engine` is the only subclass, and sets the attributes declared here.
    """

    _parallel: ParallelLM | None
    _runner: StepRunner
    _schedule: Scheduler
    _turn: Turn

    @abstractmethod
    def step(self) -> list[Outcome]:
        """Run one decode step for a group of requests, and return its outcomes."""

    def advance(self, handles: Sequence[RequestHandle]) -> None:
        """Run one step for all requests, unless another thread has just run one.

        Args:
            handles: The requests that the caller waits for.
        Raises:
            Exception: The error that ended one of `handles`.
            KeyboardInterrupt: The user interrupted the program. If other callers share the step,
                the step is completed first.
        """
        before = self._runner.steps
        with self._turn:
            if before == self._runner.steps and not all(handle.done for handle in handles):
                shared = not set(handles).issuperset(self._schedule.active)
                with interrupts_held(shared and self._parallel is None):
                    self.step()
        raise_errors(handles)

    def finish(
        self,
        handles: Sequence[RequestHandle],
        stepped: Callable[[int], object] = lambda ended: None,
    ) -> None:
        """Run steps, taking turns with other threads, until all `handles` are done.

        Args:
            handles: Requests to finish.
            stepped: Callback to call after each step with the number of requests that ended in
                that step.
        Raises:
            Exception: The error that ended one of `handles`.
        """
        while unfinished := [handle for handle in handles if not handle.done]:
            self.advance(unfinished)
            stepped(sum(handle.done for handle in unfinished))
        raise_errors(handles)  # another thread's step may have ended a request

    def collect(self, handle: RequestHandle) -> tuple[list[Outcome], bool]:
        """Return a request's new outcomes, running a step first if there are none.

        Args:
            handle: Request submitted with `keep_outcomes`.
        Returns:
            The outcomes, and whether the request has ended without an error. If it has, no further
            outcomes follow.
        Raises:
            Exception: The error that ended the request, once all its outcomes have been collected.
        """
        assert handle.outcomes is not None, "submit with keep_outcomes=True"
        with self._turn:  # never read the outcomes of an unfinished step
            if not handle.outcomes:
                self.advance([handle])
            taken = list(handle.outcomes)
            handle.outcomes.clear()
            return taken, handle.done and handle.error is None
