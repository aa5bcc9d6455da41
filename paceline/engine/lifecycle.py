"""What becomes of requests: they get a place and a drafter, tokens, and an end, each with its
own errors.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from paceline.core.drafter import Outcome, Plain
from paceline.core.metrics import EngineLoad
from paceline.draft_budget.drafter_state import DrafterState
from paceline.engine.kv_cache_manager import KVCacheManager
from paceline.engine.request_handle import RequestHandle
from paceline.engine.scheduler import Scheduler
from paceline.errors import PacelineError

_log = logging.getLogger(__name__)


class Lifecycle:
    """Of the requests of one engine, which calls it between and after its forwards.

    Args:
        goes_on: requests whose drafter raises go on without drafts.
    """

    def __init__(self, schedule: Scheduler, room: KVCacheManager, goes_on: bool) -> None:
        self._schedule, self._room = schedule, room
        self._goes_on = goes_on
        self._load = EngineLoad()

    @property
    def load(self) -> EngineLoad:
        """What has been done, and what there is to do now."""
        schedule, room = self._schedule, self._room
        return replace(
            self._load,
            waiting=len(schedule.waiting),
            running=len(schedule.active),
            cache_usage=room.usage(),
            kept=room.kept,
            prefix_hits=room.reused,
            preemptions=schedule.preemptions,
        )

    def admit(self) -> None:
        """Give waiting requests their place in the cache and to their drafters, as far as there
        is room.
        """
        while (handle := self._schedule.waiting.first()) is not None:
            try:
                if not self._schedule.admit(handle):
                    return
                self._begin(handle)
            except BaseException as error:
                self.fail([handle], error)
                if not isinstance(error, Exception):
                    raise

    def _begin(self, handle: RequestHandle) -> None:
        """Show a request that has its place to its drafter, unless that is so already."""
        if handle.started:
            return
        handle.started, handle.admitted = True, time.perf_counter()
        self._load.prompt_tokens += handle.request.prompt_length
        try:
            handle.drafter_state.drafter.start(handle.request)
        except Exception as error:
            self.drafter_failed([handle], error)

    def count_forward(self) -> None:
        """Take in that the target has made a pass."""
        self._load.forwards += 1

    def deliver(self, handle: RequestHandle, outcome: Outcome) -> None:
        """Give a request what a step has brought, which may be its end."""
        # it is fed anew, with other rotary frequencies
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
            except Exception as error:  # it is this request's alone
                handle.error = error

    def drafter_failed(self, handles: list[RequestHandle], error: Exception) -> bool:
        """Take requests from a drafter that raised; returns whether they go on."""
        if not self._goes_on:
            self.fail(handles, error)
            return False
        for handle in handles:
            drafter, request = handle.drafter_state.drafter, handle.request
            _log.warning(
                "drafter %r failed; request %d goes on without drafts: %s",
                drafter.name,
                request.id,
                error,
            )
            with suppress(Exception):  # the first error is the one to tell
                drafter.stop(request)
            handle.drafter_state = DrafterState(Plain(), None)
            request.counters.note("drafter_failed")
        self._load.drafter_failures += len(handles)
        return True

    def fail(self, handles: list[RequestHandle], error: BaseException) -> None:
        """End requests before their time; the error is theirs to raise."""
        reason = (
            error
            if isinstance(error, Exception)
            else PacelineError(
                f"the step this request took part in was ended by {type(error).__name__} in"
                " another call. Send the request again."
            )
        )
        for handle in handles:
            if handle in self._schedule.active:
                handle.error = reason
                with suppress(Exception):  # the first error is the one to tell
                    self._retire(handle)

    def disown(self) -> None:
        """End all open requests of a process that was forked: its parent answers them."""
        for handle in (*self._schedule.waiting, *self._schedule.active):
            handle.error = PacelineError(
                "this process was forked while the request was open; the parent answers it. Send"
                " it again."
            )
            with suppress(Exception):
                self._retire(handle)

    def drop(self, handle: RequestHandle) -> None:
        """End a request that nobody waits for any more, if it has not ended, and free everything
        it holds.
        """
        if handle in self._schedule.active or handle in self._schedule.waiting:
            self._retire(handle)
        if handle.keep_slot:
            self._room.free(handle.request)

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
                self._room.close(handle.request, reusable=handle.error is None)
            handle.done = True
