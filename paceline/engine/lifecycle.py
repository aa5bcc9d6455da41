"""What becomes of requests: they get a place and a drafter, tokens, and an end, each with its own errors."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from paceline.engine.drafter import Outcome, Plain
from paceline.engine.drafting import Drafting
from paceline.engine.metrics import Load
from paceline.engine.room import Room
from paceline.engine.scheduler import Scheduler
from paceline.engine.ticket import Ticket
from paceline.errors import PacelineError

_log = logging.getLogger(__name__)


class Lifecycle:
    """Of the requests of one engine, which calls it between and after its forwards.

    Args:
        goes_on: requests whose drafter raises go on without drafts.
    """

    def __init__(self, schedule: Scheduler, room: Room, goes_on: bool) -> None:
        self._schedule, self._room = schedule, room
        self._goes_on = goes_on
        self._load = Load()

    @property
    def load(self) -> Load:
        """What has been done, and what there is to do now."""
        schedule, room = self._schedule, self._room
        return replace(
            self._load, waiting=len(schedule.waiting), running=len(schedule.active), cache_usage=room.usage(), kept=room.kept,
            prefix_hits=room.reused, preemptions=schedule.preemptions,
        )  # fmt: skip

    def admit(self) -> None:
        """Give waiting requests their place in the cache and to their drafters, as far as there is room."""
        while (ticket := self._schedule.waiting.first()) is not None:
            try:
                if not self._schedule.place(ticket):
                    return
                self._begin(ticket)
            except BaseException as error:
                self.fail([ticket], error)
                if not isinstance(error, Exception):
                    raise

    def _begin(self, ticket: Ticket) -> None:
        """Show a request that has its place to its drafter, unless that is so already."""
        if ticket.started:
            return
        ticket.started, ticket.admitted = True, time.perf_counter()
        self._load.prompt_tokens += ticket.seq.prompt_length
        try:
            ticket.drafting.drafter.start(ticket.seq)
        except Exception as error:
            self.drafter_failed([ticket], error)

    def count_forward(self) -> None:
        """Take in that the target has made a pass."""
        self._load.forwards += 1

    def deliver(self, ticket: Ticket, outcome: Outcome) -> None:
        """Give a request what a step has brought, which may be its end."""
        ticket.prefilling = ticket.seq.cached == 0  # it is fed anew, with other rotary frequencies
        self._load.new_tokens += len(outcome.new_token_ids)
        self._load.drafted_tokens += len(outcome.tree)
        self._load.accepted_tokens += len(outcome.accepted)
        if ticket.seq.failure is not None:
            self.fail([ticket], ticket.seq.failure)
            return
        if ticket.outcomes is not None:
            ticket.outcomes.append(outcome)
        if ticket.seq.finish_reason is not None:
            try:
                self._retire(ticket)
            except Exception as error:  # it is this request's alone
                ticket.error = error

    def drafter_failed(self, tickets: list[Ticket], error: Exception) -> bool:
        """Take requests from a drafter that raised; returns whether they go on."""
        if not self._goes_on:
            self.fail(tickets, error)
            return False
        for ticket in tickets:
            drafter, seq = ticket.drafting.drafter, ticket.seq
            _log.warning("drafter %r failed; request %d goes on without drafts: %s", drafter.name, seq.id, error)
            with suppress(Exception):  # the first error is the one to tell
                drafter.stop(seq)
            ticket.drafting = Drafting(Plain(), None)
            seq.counters.note("drafter_failed")
        self._load.drafter_failures += len(tickets)
        return True

    def fail(self, tickets: list[Ticket], error: BaseException) -> None:
        """End requests before their time; the error is theirs to raise."""
        reason = error if isinstance(error, Exception) else PacelineError(
            f"the step this request took part in was ended by {type(error).__name__} in another call. Send the request again."
        )  # fmt: skip
        for ticket in tickets:
            if ticket in self._schedule.active:
                ticket.error = reason
                with suppress(Exception):  # the first error is the one to tell
                    self._retire(ticket)

    def disown(self) -> None:
        """End all open requests of a process that was forked: its parent answers them."""
        for ticket in (*self._schedule.waiting, *self._schedule.active):
            ticket.error = PacelineError(
                "this process was forked while the request was open; the parent answers it. Send it again."
            )
            with suppress(Exception):
                self._retire(ticket)

    def drop(self, ticket: Ticket) -> None:
        """End a request that nobody waits for any more, if it has not ended, and free everything it holds."""
        if ticket in self._schedule.active or ticket in self._schedule.waiting:
            self._retire(ticket)
        if ticket.keep_slot:
            self._room.free(ticket.seq)

    def _retire(self, ticket: Ticket) -> None:
        ticket.ended = time.perf_counter()
        self._schedule.remove(ticket)
        self._load.finished += ticket.seq.finish_reason is not None
        self._load.aborted += ticket.seq.finish_reason is None
        try:
            if ticket.started:
                ticket.drafting.drafter.stop(ticket.seq)
        finally:
            if not ticket.keep_slot:
                self._room.close(ticket.seq, reusable=ticket.error is None)
            ticket.done = True
