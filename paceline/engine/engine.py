"""The engine: one running batch for all callers. Requests join and leave at any step; a place that falls free is taken at once.

It has no thread of its own. Whoever waits for an answer makes the steps, for everybody: `advance` takes turns at the lock.
So a program with one thread stays as simple as a loop, and calls from several threads share their forwards.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListLike
from contextlib import nullcontext
from typing import Any, Literal

from transformers import PreTrainedModel

from paceline.common.options import BATCH_INVARIANT, BatchInvariant
from paceline.engine.cost_curve import CostCurve
from paceline.engine.costs import Costs
from paceline.engine.drafter import Drafter, Outcome, check_vocabulary, require_drafter, turn_of
from paceline.engine.drafting import Part
from paceline.engine.foresight.find import Foresights
from paceline.engine.grouping import fed_by, parts_of
from paceline.engine.interrupts import interrupts_held
from paceline.engine.invariance import settle
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.metrics import Load, Timing
from paceline.engine.model import PREFILL_CHUNK
from paceline.engine.parallel.model import ParallelLM, check_columns, refuse_others
from paceline.engine.parallel.ranks import Ranks
from paceline.engine.reliability import Reliability
from paceline.engine.room import Room, most_cache_bytes
from paceline.engine.roster import Maker, Roster, no_maker
from paceline.engine.scheduler import Scheduler
from paceline.engine.selfcheck import checked_model
from paceline.engine.sequence import Sequence
from paceline.engine.spending import Spending
from paceline.engine.step import Verifier, joint_step
from paceline.engine.ticket import Ticket, raise_errors
from paceline.engine.turn import Turn
from paceline.engine.verify import verify as verify_batch
from paceline.errors import ConfigError

OnDrafterError = Literal["raise", "plain"]


class Engine:
    """Steps up to `max_batch` requests of any number of callers together.

    Args:
        model: a decoder-only transformers model, in eval mode, on its device.
        drafter: guesses for all requests that name no other.
        spec: what it was made of, where that is known. make: builds the drafters that requests name, from their specs.
        tokenizer: of the prompts, for drafters whose guesses are ids of a certain one.
        max_batch: most sequences per forward; None = no limit.
        max_nodes: most draft nodes verified per sequence and step.
        prefill_chunk: most tokens of a prompt that a step feeds; fewer where batch invariance needs it.
        ranks: share the work on every draft tree with these processes, which make the same calls (`engine/parallel`).
        batch_invariant: a token's logits depend on its own text alone, to the last bit; "auto": where that costs under 5 %, and
            never with ranks.
        cache_gib: most memory of the cache in GiB; requests wait for it, and those that came last go back to wait where answers
            outgrow it. None = most of what is available now.
        keep_prefixes: ended requests whose keys and values stay in the cache, for prompts that begin like them.
        on_drafter_error: "raise": an error of a drafter ends the requests that have it; "plain": they go on without drafts.
        cost_curve: what forwards cost; then no clock decides how many nodes of a tree are fed. None = as measured.
        verify: the rule by which tokens are chosen.
    Attributes:
        invariance: whether they do, and why or why not.
        costs: what forwards cost; None with ranks.
        spending: cuts draft trees to what pays; None with ranks.
    Raises:
        ConfigError, DatastoreError: a drafter that does not fit, or batch invariance that was asked for and cannot be;
            UnsupportedModelError: a model that cannot be verified losslessly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        drafter: Drafter,
        *,
        spec: str | None = None,
        make: Maker = no_maker,
        tokenizer: Any = None,
        max_batch: int | None = 8,
        max_nodes: int = 256,
        prefill_chunk: int = PREFILL_CHUNK,
        ranks: Ranks | None = None,
        batch_invariant: BatchInvariant = BATCH_INVARIANT,
        cache_gib: float | None = None,
        keep_prefixes: int = 0,
        on_drafter_error: OnDrafterError = "raise",
        cost_curve: CostCurve | None = None,
        verify: Verifier = verify_batch,
    ) -> None:
        if ranks is not None and batch_invariant == "auto":
            batch_invariant = False  # clocks decide there, and the ranks must do the same
        self.invariance = settle(model, batch_invariant, max_batch or 1)
        self._most_rows = self.invariance.most_rows
        options = self.invariance.of_model(prefill_chunk)
        self.model = checked_model(model, options)
        self._tokenizer = tokenizer
        self._max_batch, self._max_nodes = max_batch, max_nodes
        self._verify = verify
        self._parallel: ParallelLM | None = None
        if ranks is not None:
            self.model = self._parallel = ParallelLM(model, ranks, drafter, max_nodes, **options, chains=self.model.chains)
            self._verify = self._parallel.verify
        # The ranks of a parallel run must take the same trees, and each has a clock of its own.
        self.costs = None if ranks is not None else Costs(self.model, self._most_rows, cost_curve)
        self.spending = None if self.costs is None else Spending(self.costs.curve, None if self.costs.given else self.costs.renew)
        self._foresights = None if ranks is not None else Foresights(self.model)
        self._roster = Roster(make if ranks is None else refuse_others, self._check, ranks is None)
        self._use(drafter, spec)
        self._room = Room(self.model, max_batch, keep_prefixes, most_cache_bytes(model, cache_gib))
        self._schedule = Scheduler(self.model, self._room, max_batch, self._most_rows, ranks is None)
        self._lifecycle = Lifecycle(self._schedule, self._room, on_drafter_error == "plain")
        self._turn = Turn(lambda: [self._drafters_turn, self._schedule.waiting.lock, *self._roster.locks])
        self._stepping = False
        self._leaving: deque[Ticket] = deque()  # withdrawn during a step
        self._steps = 0
        self._step_seconds = self._draft_seconds = 0.0

    @property
    def drafter(self) -> Drafter:
        """The drafter of requests that name none."""
        return self._roster.own.drafter

    def change_drafter(self, drafter: Drafter) -> None:
        """Use another drafter from now on for requests that name none; between requests.

        Raises:
            ConfigError: requests are open, or it is no drafter, or one that does not fit the model.
        """
        require_drafter("change_drafter", drafter)
        with self._turn:
            if self.unfinished:
                raise ConfigError(
                    f"change_drafter: got {drafter.name!r} while {self._open} requests are open;"
                    " expected none. Let them end, or withdraw them."
                )
            if self._parallel is not None:
                check_columns(drafter, self._parallel.ranks.size)
            self._use(drafter, None)

    @property
    def reliability(self) -> Reliability | None:
        """What the drafter's confidence was worth so far; None where its trees are fed as they come."""
        worth = self._roster.own.worth
        return None if worth is None else worth.reliability

    @property
    def unfinished(self) -> bool:
        """Whether a step is left to do."""
        return self._open > 0

    @property
    def _open(self) -> int:
        return len(self._schedule.waiting) + len(self._schedule.active)

    @property
    def load(self) -> Load:
        """What it has done and what it has to do."""
        return self._lifecycle.load

    @property
    def timing(self) -> Timing:
        """Where the time of all steps went."""
        return Timing(self._step_seconds, self.model.forward_seconds, self._draft_seconds)

    def submit(self, seqs: ListLike[Sequence], *, keep_outcomes: bool = False, keep_slots: bool = False) -> list[Ticket]:
        """Queue sequences; they are admitted in order as places fall free. Never waits for a step.

        Args:
            keep_outcomes: collect every step of theirs in `Ticket.outcomes`.
            keep_slots: leave what they have in the cache there when they end, until `withdraw`.
        Raises:
            CapacityError: a request that the cache could not even hold alone; and nothing has been queued then.
            ConfigError: torch has another number of threads than batch invariance was proven for; a drafter that a request
                names cannot be made or used, and nothing has been queued then; or this process was forked while another thread
                made a step.
        """
        self._turn.check()
        self.invariance.check_threads()
        if self._turn.inherited:
            self._drop_inherited()
        if self._parallel is not None:
            self._parallel.check_requests(seqs, self._max_batch)
        for seq in seqs:
            self._room.check(seq)
        schedule = self._schedule
        found = self._roster.find_all(seqs, lambda: {ticket.drafting for ticket in (*schedule.waiting, *schedule.active.copy())})
        tickets = [
            Ticket(seq, drafting, deque() if keep_outcomes else None, keep_slots, self.invariance.on)
            for seq, drafting in zip(seqs, found, strict=True)
        ]
        schedule.waiting.join(tickets)
        return tickets

    def has_drafters(self, seqs: ListLike[Sequence]) -> bool:
        """Whether the drafters that sequences name are there already, so that `submit` makes none."""
        return all(self._roster.knows(seq.params.speculation) for seq in seqs)

    def advance(self, tickets: ListLike[Ticket]) -> None:
        """Make one step for everybody, or find that another thread has made the one that was needed.

        Args:
            tickets: those the caller waits for.
        Raises:
            whatever ended one of `tickets`; KeyboardInterrupt between two steps, where others share them.
        """
        before = self._steps
        with self._turn:
            if before == self._steps and not all(ticket.done for ticket in tickets):
                mine = set(tickets)
                with nullcontext() if mine.issuperset(self._schedule.active) or self._parallel is not None else interrupts_held():
                    self.step()
        raise_errors(tickets)

    def finish(self, tickets: ListLike[Ticket], stepped: Callable[[int], object] = lambda ended: None) -> None:
        """Make steps, in turn with other threads, until all of `tickets` are done.

        Args:
            stepped: called after each with how many of them have ended in it.
        Raises:
            as `advance`.
        """
        while going := [ticket for ticket in tickets if not ticket.done]:
            self.advance(going)
            stepped(sum(ticket.done for ticket in going))
        raise_errors(tickets)  # another thread's step may have ended one

    def collect(self, ticket: Ticket) -> tuple[list[Outcome], bool]:
        """Take out the steps of a ticket that keeps them, after making one if there is none yet.

        Returns:
            the outcomes, and whether they are the last ones; what ended the request early is raised by the next call.
        Raises:
            as `advance`.
        """
        assert ticket.outcomes is not None, "submit with keep_outcomes=True"
        with self._turn:  # so that a step of another thread is seen whole
            if not ticket.outcomes:
                self.advance([ticket])
            taken = list(ticket.outcomes)
            ticket.outcomes.clear()
            return taken, ticket.done and ticket.error is None

    def step(self) -> list[Outcome]:
        """Make one decode step of one group; sequences that end give their place back.

        An error ends the requests that took part in the step, that of a drafter those of them that have it, and is theirs to
        raise; all others go on.

        Raises:
            ConfigError: it was called from inside a step, by a drafter that asks its own engine.
        """
        with self._turn, self._drafters_turn:
            if self._stepping:
                raise ConfigError("got a call from inside a step of the same engine; expected none there. Use another LLM.")
            start, self._stepping = time.perf_counter(), True
            group: list[Ticket] = []
            try:
                self.admit()
                group = self._schedule.next_group()
                return self._decode(group) if group else []
            except BaseException as error:
                self._lifecycle.fail(group, error)
                if not isinstance(error, Exception):
                    raise
                return []
            finally:
                self._stepping = False
                self._steps += 1
                self._step_seconds += time.perf_counter() - start
                if self._leaving:
                    self.withdraw([self._leaving.popleft() for _ in range(len(self._leaving))])

    def admit(self) -> None:
        """Give waiting requests their place in the cache and to the drafter, as far as there is room."""
        if len(self._schedule.waiting):
            with self._turn, self._drafters_turn:
                self._lifecycle.admit()

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests, waiting or active, and free everything they still hold; those that have ended are no matter."""
        if self._turn.torn:
            return
        with self._turn, self._drafters_turn:
            if self._stepping:  # a stream that nobody holds any more may be closed in the middle of its own thread's step
                self._leaving.extend(tickets)
                return
            for ticket in tickets:
                self._lifecycle.drop(ticket)

    def _drop_inherited(self) -> None:
        """End the requests that were open when this process was forked."""
        with self._turn, self._drafters_turn:
            self._turn.inherited = False
            self._lifecycle.disown()

    def _decode(self, group: list[Ticket]) -> list[Outcome]:
        parts = parts_of(group, self.model, self._max_nodes, self._most_rows)
        self._add_foresight(parts)  # takes seconds once
        start, fed = time.perf_counter(), sum(fed_by(group, self.model.prefill_chunk))
        joint_step(self.model, parts, self._verify, self.spending)
        self._schedule.note(fed, time.perf_counter() - start)
        self._lifecycle.count_forward()
        self._draft_seconds += sum(part.draft_seconds for part in parts)
        holders = {id(ticket.seq): ticket for ticket in group}
        outcomes = []
        for part in parts:
            if part.error is not None and not self._lifecycle.drafter_failed([holders[id(seq)] for seq in part.seqs], part.error):
                continue
            for outcome in part.outcomes:
                self._lifecycle.deliver(holders[id(outcome.seq)], outcome)
            outcomes += part.outcomes
        self._schedule.make_room()
        if self.spending is not None:
            self.spending.renew()
        return outcomes

    def _add_foresight(self, parts: list[Part]) -> None:
        """Give parts what their drafters ask for; never with ranks: a clock bounds its making."""
        if self._foresights is None:
            return
        for part in parts:
            try:
                part.foresees = part.drafting.drafter.foresees()
                part.foresight = self._foresights.of(part.drafting.drafter) if part.foresees else None
            except Exception as error:
                part.error = error

    def _check(self, drafter: Drafter) -> None:
        check_vocabulary(drafter, self.model.vocab_size, self._tokenizer)
        drafter.attach(self.model.model, self._tokenizer)
        if self._tokenizer is not None:
            drafter.check_tokenizer(self._tokenizer)
        if self._foresights is not None:
            self._foresights.check(drafter)

    def _use(self, drafter: Drafter, spec: str | None) -> None:
        self._roster.use(drafter, spec)
        self._drafters_turn = turn_of(drafter)  # other engines may have it, too
