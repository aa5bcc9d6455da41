"""Run an engine's steps, and deliver outcomes and errors to requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paceline.core.drafter import Drafter, Outcome
from paceline.core.metrics import Timing
from paceline.draft_budget.drafts import DrafterBatch
from paceline.engine.batch_result import BatchResult
from paceline.engine.grouping import StepGroup, group_by_drafter
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.request_handle import RequestHandle
from paceline.engine.scheduler import Scheduler
from paceline.engine.step import Verifier, run_step
from paceline.verification.verify import verify as verify_batch

if TYPE_CHECKING:
    from paceline.engine.target_setup import TargetSetup


class StepRunner:
    """Runs one step at a time; the engine manages the locks.

    Args:
        target: Target model and its draft budget.
        schedule: Scheduler that chooses the requests for a step.
        lifecycle: Object that admits requests, and receives outcomes and errors.
        max_nodes: Maximum number of draft nodes verified per request and step.
        verify: Verification rule; None means the default. A lookahead-parallel run always uses
            `ParallelLM.verify`.
    Attributes:
        steps: Number of steps so far.
    """

    def __init__(
        self,
        target: TargetSetup,
        schedule: Scheduler,
        lifecycle: Lifecycle,
        max_nodes: int,
        verify: Verifier | None,
    ) -> None:
        self._model, self._draft_budget = target.model, target.draft_budget
        self._draft_heads, self._max_rows = target.draft_heads, target.invariance.max_rows
        rule = verify or verify_batch
        self._verify = rule if target.parallel is None else target.parallel.verify
        self._schedule, self._lifecycle, self._max_nodes = schedule, lifecycle, max_nodes
        self.steps = 0
        self._step_seconds = self._draft_seconds = 0.0

    @property
    def timing(self) -> Timing:
        """Return the total duration of all steps, split by kind of work."""
        return Timing(self._step_seconds, self._model.forward_seconds, self._draft_seconds)

    def run(self) -> list[Outcome]:
        """Admit waiting requests, and run one step for a group of requests.

        If the step fails, the requests in the group end with the error. The calls that wait for
        these requests then raise the error.
        """
        start = time.perf_counter()
        handles: list[RequestHandle] = []
        try:
            self._lifecycle.admit()
            group = self._schedule.next_group()
            handles = group.handles
            return self._decode(group) if handles else []
        except BaseException as error:
            self._lifecycle.fail(handles, error)
            # Without a group, the error ends no request, and would recur in every step.
            if not isinstance(error, Exception) or not handles:
                raise
            return []
        finally:
            self.steps += 1
            self._step_seconds += time.perf_counter() - start

    def finish_draft_head(self, drafter: Drafter) -> None:
        """Load or fit a drafter's draft head immediately, if the drafter uses one."""
        if self._draft_heads is None:
            return
        try:
            self._draft_heads.finish(drafter)
        except Exception as error:  # the steps of the drafter's requests report it, too
            if not self._lifecycle.drafter_failed([], error):
                raise

    def _decode(self, group: StepGroup) -> list[Outcome]:
        batches, failed = self._with_draft_heads(
            group_by_drafter(group, self._model, self._max_nodes, self._max_rows)
        )
        start, num_pending = time.perf_counter(), sum(group.num_pending)
        results = failed + run_step(
            self._model, batches, self._verify, self._draft_budget, group.prefill_chunk
        )
        self._schedule.record_step(num_pending, time.perf_counter() - start)
        self._lifecycle.count_forward()
        self._draft_seconds += sum(result.draft_seconds for result in results)
        handles = {handle.request: handle for handle in group.handles}
        outcomes = []
        for result in results:
            if result.error is not None and not self._lifecycle.drafter_failed(
                [handles[request] for request in result.batch.requests], result.error
            ):
                continue
            for outcome in result.outcomes:
                self._lifecycle.deliver(handles[outcome.request], outcome)
            outcomes += result.outcomes
        self._schedule.grow_cache()
        if self._draft_budget is not None:
            self._draft_budget.renew()
        return outcomes

    def _with_draft_heads(
        self, batches: list[DrafterBatch]
    ) -> tuple[list[DrafterBatch], list[BatchResult]]:
        """Add the drafter's draft head to each batch, if the drafter uses one.

        On a CPU, the first use of a draft head may take seconds, because the engine may have to fit
        the head first.

        Returns:
            The batches whose drafters raised no error, and a result with the error for each of the
            other batches.
        """
        if self._draft_heads is None:
            return batches, []
        able: list[DrafterBatch] = []
        failed: list[BatchResult] = []
        for batch in batches:
            drafter = batch.drafter_state.drafter
            try:
                count = drafter.num_head_tokens()
                head = self._draft_heads.of(drafter, self.steps) if count else None
            except Exception as error:
                failed.append(BatchResult(batch, [], error=error))
            else:
                able.append(batch.with_head(head, count) if count else batch)
        return able, failed
