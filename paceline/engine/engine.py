"""The engine: one running batch for all callers. Requests join and leave at any step; a place that
falls free is taken at once.

It has no thread of its own. Whoever waits for an answer makes the steps, for everybody: `advance`
takes turns at the lock. So a program with one thread stays as simple as a loop, and calls from
several threads share their forwards.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from transformers import PreTrainedModel

from paceline.core.drafter import Drafter, Outcome, check_vocabulary, require_drafter, turn_of
from paceline.core.metrics import EngineLoad, Timing
from paceline.core.request import Request
from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.costs import Costs
from paceline.draft_budget.drafter_state import DrafterBatch
from paceline.draft_head.find import DraftHeads
from paceline.engine.drafter_pool import DrafterPool, Maker, no_maker
from paceline.engine.grouping import group_by_drafter, num_fed_tokens
from paceline.engine.keyboard_interrupts import interrupts_held
from paceline.engine.kv_cache_manager import KVCacheManager, most_cache_bytes
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.parallel.model import ParallelLM, check_columns, refuse_others
from paceline.engine.parallel.ranks import Ranks
from paceline.engine.request_handle import RequestHandle, raise_errors
from paceline.engine.scheduler import Scheduler
from paceline.engine.step import Verifier, run_step
from paceline.engine.turn import Turn
from paceline.errors import ConfigError
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.cached_lm import PREFILL_CHUNK
from paceline.model.self_check import checked_model
from paceline.util.options import BATCH_INVARIANT, BatchInvariant
from paceline.verification.verify import verify as verify_batch

OnDrafterError = Literal["raise", "plain"]


class Engine:
    """Steps up to `max_batch` requests of any number of callers together.

    Args:
        model: a decoder-only transformers model, in eval mode, on its device.
        drafter: guesses for all requests that name no other.
        spec: what it was made of, where that is known. make: builds the drafters that requests
            name, from their specs.
        tokenizer: of the prompts, for drafters whose guesses are ids of a certain one.
        max_batch: most sequences per forward; None = no limit.
        max_nodes: most draft nodes verified per sequence and step.
        prefill_chunk: most tokens of a prompt that a step feeds; fewer where batch invariance needs
            it.
        ranks: share the work on every draft tree with these processes, which make the same calls
            (`engine/parallel`).
        batch_invariant: a token's logits depend on its own text alone, to the last bit; "auto":
            where that costs under 5 %, and never with ranks.
        cache_gib: most memory of the cache in GiB; requests wait for it, and those that came last
            go back to wait where answers outgrow it. None = most of what is available now.
        keep_prefixes: ended requests whose keys and values stay in the cache, for prompts that
            begin like them.
        on_drafter_error: "raise": an error of a drafter ends the requests that have it; "plain":
            they go on without drafts.
        cost_curve: what forwards cost; then no clock decides how many nodes of a tree are fed. None
            = as measured.
        verify: the rule by which tokens are chosen.
    Attributes:
        invariance: whether they do, and why or why not.
        costs: what forwards cost; None with ranks.
        spending: cuts draft trees to what pays; None with ranks.
    Raises:
        ConfigError, DatastoreError: a drafter that does not fit, or batch invariance that was asked
            for and cannot be; UnsupportedModelError: a model that cannot be verified losslessly.
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
        self.invariance = resolve_batch_invariance(model, batch_invariant, max_batch or 1)
        self._most_rows = self.invariance.most_rows
        options = self.invariance.of_model(prefill_chunk)
        self.model = checked_model(model, options)
        self._tokenizer = tokenizer
        self._max_batch, self._max_nodes = max_batch, max_nodes
        self._verify = verify
        self._parallel: ParallelLM | None = None
        if ranks is not None:
            self.model = self._parallel = ParallelLM(
                model, ranks, drafter, max_nodes, **options, chains=self.model.chains
            )
            self._verify = self._parallel.verify
        # The ranks of a parallel run must take the same trees, and each has a clock of its own.
        self.costs = None if ranks is not None else Costs(self.model, self._most_rows, cost_curve)
        self.spending = (
            None
            if self.costs is None
            else DraftBudget(self.costs.curve, None if self.costs.given else self.costs.renew)
        )
        self._draft_heads = None if ranks is not None else DraftHeads(self.model)
        self._roster = DrafterPool(
            make if ranks is None else refuse_others, self._check, ranks is None
        )
        self._use(drafter, spec)
        self._room = KVCacheManager(
            self.model, max_batch, keep_prefixes, most_cache_bytes(model, cache_gib)
        )
        self._schedule = Scheduler(
            self.model, self._room, max_batch, self._most_rows, ranks is None
        )
        self._lifecycle = Lifecycle(self._schedule, self._room, on_drafter_error == "plain")
        self._turn = Turn(
            lambda: [self._drafters_turn, self._schedule.waiting.lock, *self._roster.locks]
        )
        self._stepping = False
        self._leaving: deque[RequestHandle] = deque()  # withdrawn during a step
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
    def acceptance_calibration(self) -> AcceptanceCalibration | None:
        """What the drafter's confidence was worth so far; None where its trees are fed as they
        come.
        """
        stats = self._roster.own.stats
        return None if stats is None else stats.acceptance_calibration

    @property
    def unfinished(self) -> bool:
        """Whether a step is left to do."""
        return self._open > 0

    @property
    def _open(self) -> int:
        return len(self._schedule.waiting) + len(self._schedule.active)

    @property
    def load(self) -> EngineLoad:
        """What it has done and what it has to do."""
        return self._lifecycle.load

    @property
    def timing(self) -> Timing:
        """Where the time of all steps went."""
        return Timing(self._step_seconds, self.model.forward_seconds, self._draft_seconds)

    def submit(
        self, requests: Sequence[Request], *, keep_outcomes: bool = False, keep_slots: bool = False
    ) -> list[RequestHandle]:
        """Queue sequences; they are admitted in order as places fall free. Never waits for a step.

        Args:
            keep_outcomes: collect every step of theirs in `RequestHandle.outcomes`.
            keep_slots: leave what they have in the cache there when they end, until `withdraw`.
        Raises:
            CapacityError: a request that the cache could not even hold alone; and nothing has been
                queued then.
            ConfigError: torch has another number of threads than batch invariance was proven for; a
                drafter that a request names cannot be made or used, and nothing has been queued
                then; or this process was forked while another thread made a step.
        """
        self._turn.check()
        self.invariance.check_threads()
        if self._turn.inherited:
            self._drop_inherited()
        if self._parallel is not None:
            self._parallel.check_requests(requests, self._max_batch)
        for request in requests:
            self._room.check(request)
        schedule = self._schedule
        found = self._roster.find_all(
            requests,
            lambda: {
                handle.drafter_state for handle in (*schedule.waiting, *schedule.active.copy())
            },
        )
        handles = [
            RequestHandle(
                request,
                drafter_state,
                deque() if keep_outcomes else None,
                keep_slots,
                self.invariance.on,
            )
            for request, drafter_state in zip(requests, found, strict=True)
        ]
        schedule.waiting.join(handles)
        return handles

    def has_drafters(self, requests: Sequence[Request]) -> bool:
        """Whether the drafters that sequences name are there already, so that `submit` makes
        none.
        """
        return all(self._roster.knows(request.params.speculation) for request in requests)

    def advance(self, handles: Sequence[RequestHandle]) -> None:
        """Make one step for everybody, or find that another thread has made the one that was
        needed.

        Args:
            tickets: those the caller waits for.
        Raises:
            whatever ended one of `handles`; KeyboardInterrupt between two steps, where others share
            them.
        """
        before = self._steps
        with self._turn:
            if before == self._steps and not all(handle.done for handle in handles):
                mine = set(handles)
                with (
                    nullcontext()
                    if mine.issuperset(self._schedule.active) or self._parallel is not None
                    else interrupts_held()
                ):
                    self.step()
        raise_errors(handles)

    def finish(
        self,
        handles: Sequence[RequestHandle],
        stepped: Callable[[int], object] = lambda ended: None,
    ) -> None:
        """Make steps, in turn with other threads, until all of `handles` are done.

        Args:
            stepped: called after each with how many of them have ended in it.
        Raises:
            as `advance`.
        """
        while going := [handle for handle in handles if not handle.done]:
            self.advance(going)
            stepped(sum(handle.done for handle in going))
        raise_errors(handles)  # another thread's step may have ended one

    def collect(self, handle: RequestHandle) -> tuple[list[Outcome], bool]:
        """Take out the steps of a ticket that keeps them, after making one if there is none yet.

        Returns:
            the outcomes, and whether they are the last ones; what ended the request early is raised
            by the next call.
        Raises:
            as `advance`.
        """
        assert handle.outcomes is not None, "submit with keep_outcomes=True"
        with self._turn:  # so that a step of another thread is seen whole
            if not handle.outcomes:
                self.advance([handle])
            taken = list(handle.outcomes)
            handle.outcomes.clear()
            return taken, handle.done and handle.error is None

    def step(self) -> list[Outcome]:
        """Make one decode step of one group; sequences that end give their place back.

        An error ends the requests that took part in the step, that of a drafter those of them that
        have it, and is theirs to raise; all others go on.

        Raises:
            ConfigError: it was called from inside a step, by a drafter that asks its own engine.
        """
        with self._turn, self._drafters_turn:
            if self._stepping:
                raise ConfigError(
                    "got a call from inside a step of the same engine; expected none there. Use"
                    " another LLM."
                )
            start, self._stepping = time.perf_counter(), True
            group: list[RequestHandle] = []
            try:
                self.admit()
                group = self._schedule.next_group()
                return self._decode(group) if group else []
            except BaseException as error:
                self._lifecycle.fail(group, error)
                # Without a group no request ends: the same error would come back for ever.
                if not isinstance(error, Exception) or not group:
                    raise
                return []
            finally:
                self._stepping = False
                self._steps += 1
                self._step_seconds += time.perf_counter() - start
                if self._leaving:
                    self.withdraw([self._leaving.popleft() for _ in range(len(self._leaving))])

    def admit(self) -> None:
        """Give waiting requests their place in the cache and to the drafter, as far as there is
        room.
        """
        if len(self._schedule.waiting):
            with self._turn, self._drafters_turn:
                self._lifecycle.admit()

    def withdraw(self, handles: Iterable[RequestHandle]) -> None:
        """Drop requests, waiting or active, and free everything they still hold; those that have
        ended are no matter.
        """
        if self._turn.torn:
            return
        with self._turn, self._drafters_turn:
            # a stream that nobody holds any more may be closed in the middle of its own thread's
            # step
            if self._stepping:
                self._leaving.extend(handles)
                return
            for handle in handles:
                self._lifecycle.drop(handle)

    def _drop_inherited(self) -> None:
        """End the requests that were open when this process was forked."""
        with self._turn, self._drafters_turn:
            self._turn.inherited = False
            self._lifecycle.disown()

    def _decode(self, group: list[RequestHandle]) -> list[Outcome]:
        batches = group_by_drafter(group, self.model, self._max_nodes, self._most_rows)
        self._add_draft_head(batches)  # takes seconds once
        start, fed = time.perf_counter(), sum(num_fed_tokens(group, self.model.prefill_chunk))
        run_step(self.model, batches, self._verify, self.spending)
        self._schedule.note(fed, time.perf_counter() - start)
        self._lifecycle.count_forward()
        self._draft_seconds += sum(batch.draft_seconds for batch in batches)
        holders = {id(handle.request): handle for handle in group}
        outcomes = []
        for batch in batches:
            if batch.error is not None and not self._lifecycle.drafter_failed(
                [holders[id(request)] for request in batch.requests], batch.error
            ):
                continue
            for outcome in batch.outcomes:
                self._lifecycle.deliver(holders[id(outcome.request)], outcome)
            outcomes += batch.outcomes
        self._schedule.make_room()
        if self.spending is not None:
            self.spending.renew()
        return outcomes

    def _add_draft_head(self, batches: list[DrafterBatch]) -> None:
        """Give parts what their drafters ask for; never with ranks: a clock bounds its making."""
        if self._draft_heads is None:
            return
        for batch in batches:
            try:
                batch.num_head_tokens = batch.drafter_state.drafter.num_head_tokens()
                batch.draft_head = (
                    self._draft_heads.of(batch.drafter_state.drafter)
                    if batch.num_head_tokens
                    else None
                )
            except Exception as error:
                batch.error = error

    def _check(self, drafter: Drafter) -> None:
        check_vocabulary(drafter, self.model.vocab_size, self._tokenizer)
        drafter.attach(self.model.model, self._tokenizer)
        if self._tokenizer is not None:
            drafter.check_tokenizer(self._tokenizer)
        if self._draft_heads is not None:
            self._draft_heads.check(drafter)

    def _use(self, drafter: Drafter, spec: str | None) -> None:
        self._roster.use(drafter, spec)
        self._drafters_turn = turn_of(drafter)  # other engines may have it, too
