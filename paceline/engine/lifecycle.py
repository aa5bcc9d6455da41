"""Admit requests, deliver their tokens, and end requests.

An error in one request does not affect other requests.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from paceline.core.drafter import Outcome, Plain
from paceline.core.metrics import EngineLoad
from paceline.draft_budget.drafts import DrafterState
from paceline.engine.kv_cache_manager import KVCacheManager
from paceline.engine.request_handle import RequestHandle
from paceline.engine.scheduler import Scheduler
from paceline.errors import PacelineError

_log = logging.getLogger(__name__)


class Lifecycle:
    """Admits, updates and ends an engine's requests between forward passes.

    Args:
        schedule: Waiting and active requests.
        kv_cache: Manager of the cache slots.
        survives_drafter_errors: Whether a request continues without drafts after its drafter has
            failed.
    """

    def __init__(
        self, schedule: Scheduler, kv_cache: KVCacheManager, survives_drafter_errors: bool
    ) -> None:
        self._schedule, self._kv_cache = schedule, kv_cache
        self._survives_drafter_errors = survives_drafter_errors
        self._load = EngineLoad()

    @property
    def load(self) -> EngineLoad:
        """Return totals of completed work, numbers of open requests, and cache usage."""
        schedule, kv_cache = self._schedule, self._kv_cache
        return replace(
            self._load,
            waiting=len(schedule.waiting),
            running=len(schedule.active),
            cache_usage=kv_cache.usage(),
            kept_requests=kv_cache.num_kept,
            prefix_hits=kv_cache.reused,
            preemptions=schedule.preemptions,
        )

    def admit(self) -> None:
        """Assign free cache slots to waiting requests, and start their drafters."""
        while (handle := self._schedule.waiting.first()) is not None:
            try:
                if not self._schedule.admit(handle):
                    return
                self._start_drafter(handle)
            except BaseException as error:
                self.fail([handle], error)
                if not isinstance(error, Exception):
                    raise

    def _start_drafter(self, handle: RequestHandle) -> None:
        """Start the drafter of an admitted request, unless it has already been started.

        A preempted request is admitted again with its drafter already started.
        """
        if handle.started:
            return
        handle.started, handle.admitted = True, time.perf_counter()
        self._load.prompt_tokens += handle.request.prompt_length
        try:
            handle.drafter_state.drafter.start(handle.request)
        except Exception as error:
            self.drafter_failed([handle], error)

    def count_forward(self) -> None:
        """Count a target forward pass."""
        self._load.forwards += 1

    def deliver(self, handle: RequestHandle, outcome: Outcome) -> None:
        """Add a step's outcome to its request, and end the request if it has finished."""
        # An empty cache means that the prompt must be computed again, with different rotary
        # frequencies.
        handle.prefilling = handle.request.cached == 0
        self._load.new_tokens += len(outcome.new_token_ids)
        self._load.drafted_tokens += len(outcome.tree)
        self._load.accepted_tokens += len(outcome.accepted)
        if handle.request.failure is not None:
            self.fail([handle], handle.request.failure)
            return
        if handle.outcomes is not None:
            handle.outcomes.append(outcome)
        if handle.request.finish_reason is not None:
            try:
                self._retire(handle)
            except Exception as error:  # affects only this request
                handle.error = error

    def drafter_failed(self, handles: list[RequestHandle], error: Exception) -> bool:
        """Handle an error in a drafter; return whether its requests continue.

        The requests end with the error, or continue without drafts.

        Args:
            handles: Requests of the drafter.
            error: Error that the drafter raised.
        """
        if not self._survives_drafter_errors:
            self.fail(handles, error)
            return False
        for handle in handles:
            drafter, request = handle.drafter_state.drafter, handle.request
            _log.warning(
                "drafter %r failed; request %d continues without drafts: %s",
                drafter.name,
                request.id,
                error,
            )
            with suppress(Exception):  # report the first error only
                drafter.stop(request)
            handle.drafter_state = DrafterState(Plain(), None)
            request.counters.note("drafter_failed")
        self._load.drafter_failures += len(handles)
        return True

    def fail(self, handles: list[RequestHandle], error: BaseException) -> None:
        """End requests with an error, which is then raised in the waiting calls.

        Args:
            handles: Requests to end.
            error: Error that ended the requests.
        """
        reason = (
            error
            if isinstance(error, Exception)
            else PacelineError(
                f"the step of this request was ended by {type(error).__name__} in another call."
                " Send the request again."
            )
        )
        for handle in handles:
            if handle in self._schedule.active:
                handle.error = reason
                with suppress(Exception):  # report the first error only
                    self._retire(handle)

    def disown(self) -> None:
        """End all open requests in a forked child; the parent process completes them."""
        for handle in (*self._schedule.waiting, *self._schedule.active):
            handle.error = PacelineError(
                "this process was forked while the request was open; the parent answers it. Send"
                " it again."
            )
            with suppress(Exception):
                self._retire(handle)

    def drop(self, handle: RequestHandle) -> None:
        """End a request whose caller no longer waits for it, and free its resources."""
        if handle in self._schedule.active or handle in self._schedule.waiting:
            self._retire(handle)
        if handle.keep_slot:
            self._kv_cache.free(handle.request)

    def _retire(self, handle: RequestHandle) -> None:
        handle.ended = time.perf_counter()
        self._schedule.remove(handle)
        self._load.finished += handle.request.finish_reason is not None
        self._load.aborted += handle.request.finish_reason is None
        try:
            if handle.started:
                handle.drafter_state.drafter.stop(handle.request)
        finally:
            if not handle.keep_slot:
                self._kv_cache.close(handle.request, reusable=handle.error is None)
            handle.done = True
