"""Run the requests of all callers in one batch, with continuous batching."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from paceline.core.delegating_drafter import turn_of
from paceline.core.drafter import Drafter, Outcome, require_drafter
from paceline.core.metrics import EngineLoad, Timing
from paceline.core.request import Request
from paceline.core.settings import (
    BATCH_INVARIANT,
    BatchInvariant,
    FixedShapes,
    OnDrafterError,
)
from paceline.engine.drafter_pool import DrafterPool, Maker, no_maker, refuse_others
from paceline.engine.engine_limits import max_cache_bytes
from paceline.engine.kv_cache_manager import KVCacheManager
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.request_handle import RequestHandle
from paceline.engine.scheduler import Scheduler
from paceline.engine.shared_steps import SharedSteps
from paceline.engine.turn import Turn
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration
    from paceline.draft_budget.cost_curve import CostCurve
    from paceline.draft_budget.settings import DraftBudgetSettings
    from paceline.engine.parallel.ranks import Ranks
    from paceline.engine.step import Verifier
    from paceline.engine.target_loading import LoadedModel


class Engine(SharedSteps):
    """Runs decode steps for requests from any number of callers.

    `paceline.llm.LLM` describes the arguments that are not listed here.

    Args:
        model: Decoder-only transformers model, in eval mode, on its device.
        drafter: Drafter for requests that do not name one.
        spec: Spec from which `drafter` was created, if known.
        make: Function that creates a drafter from a spec named in a request.
        tokenizer: Tokenizer of the prompts, for drafters that work with only one tokenizer.
        max_batch: Maximum number of requests per forward pass; None means no limit.
        max_nodes: Maximum number of draft nodes verified per request and step.
        max_length: Maximum number of tokens per request. The KV cache is prepared for requests of
            this length. None means the model's context length.
        prefill_chunk: Maximum number of prompt tokens per step (chunked prefill); batch invariance
            may lower this limit. None means the default for the model's device.
        ranks: Processes that share the computation of every draft tree (`engine/parallel`).
        verify: Verification rule that chooses the tokens; None means
            `paceline.verification.verify`.
    Attributes:
        invariance: State of batch invariance: on or off, and the reason.
        costs: Measured cost of forward passes; None if `ranks` is given.
        draft_budget: Draft budget that cuts draft trees; None if `ranks` is given.
    Raises:
        ConfigError, DatastoreError: The drafter cannot be used with the model, or batch invariance
            is required but impossible.
        UnsupportedModelError: The model does not support lossless verification.
    """

    def __init__(
        self,
        model: LoadedModel,
        drafter: Drafter,
        *,
        spec: str | None = None,
        make: Maker = no_maker,
        tokenizer: Any = None,
        max_batch: int | None = 8,
        max_nodes: int = 256,
        max_length: int | None = None,
        prefill_chunk: int | None = None,
        ranks: Ranks | None = None,
        batch_invariant: BatchInvariant = BATCH_INVARIANT,
        fixed_shapes: FixedShapes = "auto",
        cache_gib: float | None = None,
        keep_prefixes: int = 0,
        on_drafter_error: OnDrafterError = "raise",
        cost_curve: CostCurve | None = None,
        draft_budget: DraftBudgetSettings | None = None,
        verify: Verifier | None = None,
    ) -> None:
        # These modules import model code, which takes seconds. Reading or testing the engine does
        # not require it.
        from paceline.engine.step_runner import StepRunner
        from paceline.engine.target_setup import TargetOptions, set_up_target

        options = TargetOptions(
            max_batch,
            max_nodes,
            prefill_chunk,
            batch_invariant,
            fixed_shapes,
            ranks,
            cost_curve,
            draft_budget,
        )
        target = set_up_target(model, drafter, options)
        self.model, self.invariance = target.model, target.invariance
        self.costs, self.draft_budget = target.costs, target.draft_budget
        self._parallel, self._max_batch = target.parallel, max_batch
        new_stats = None if self.draft_budget is None else self.draft_budget.new_stats
        self._drafters = DrafterPool(
            make if ranks is None else refuse_others,
            lambda drafter: target.check_drafter(drafter, tokenizer),
            new_stats,
        )
        self._use(drafter, spec)
        max_bytes = max_cache_bytes(model, cache_gib)
        self._kv_cache = KVCacheManager(self.model, max_batch, keep_prefixes, max_bytes)
        # On a GPU without a limit, other programs and models may need the memory.
        if model.device.type == "cpu" or cache_gib is not None:
            self._kv_cache.preallocate(max_length)
        self._schedule = Scheduler(
            self.model, self._kv_cache, max_batch, self.invariance.max_rows, target.chunking
        )
        self._lifecycle = Lifecycle(self._schedule, self._kv_cache, on_drafter_error == "plain")
        self._runner = StepRunner(target, self._schedule, self._lifecycle, max_nodes, verify)
        self._turn = Turn(
            lambda: [self._drafters_turn, self._schedule.waiting.lock, *self._drafters.locks]
        )
        self._stepping = False
        self._withdrawn: deque[RequestHandle] = deque()  # requests withdrawn during a step

    @property
    def drafter(self) -> Drafter:
        """Drafter for requests that do not name one."""
        return self._drafters.own.drafter

    def change_drafter(self, drafter: Drafter) -> None:
        """Change the default drafter; allowed only while no request is open.

        Raises:
            ConfigError: Requests are open, `drafter` is not a drafter, or it cannot be used with
                the model.
        """
        require_drafter("change_drafter", drafter)
        with self._turn:
            if self.unfinished:
                raise ConfigError(
                    f"change_drafter: got {drafter.name!r} while {self._open} requests are open;"
                    " expected none. Wait for them to end, or withdraw them."
                )
            if self._parallel is not None:
                self._parallel.check_drafter(drafter)
            self._use(drafter, None)

    @property
    def acceptance_calibration(self) -> AcceptanceCalibration | None:
        """Measured acceptance rates by confidence bin; None if there is no draft budget."""
        stats = self._drafters.own.stats
        return None if stats is None else stats.acceptance_calibration

    @property
    def unfinished(self) -> bool:
        """Return whether any request is waiting or running."""
        return self._open > 0

    @property
    def _open(self) -> int:
        return len(self._schedule.waiting) + len(self._schedule.active)

    @property
    def load(self) -> EngineLoad:
        """Totals of completed work, and the current number of open requests."""
        return self._lifecycle.load

    @property
    def timing(self) -> Timing:
        """Total duration of all steps, split by kind of work."""
        return self._runner.timing

    def submit(
        self, requests: Sequence[Request], *, keep_outcomes: bool = False, keep_slots: bool = False
    ) -> list[RequestHandle]:
        """Queue requests and return their handles, without waiting for a step.

        The engine admits the requests in order as slots become free. If an error is raised, no
        request is queued.

        Args:
            requests: The requests to queue.
            keep_outcomes: Whether to collect the outcome of every step in `RequestHandle.outcomes`.
            keep_slots: Whether to keep the cache slots of ended requests until `withdraw` is
                called.
        Raises:
            CapacityError: A request needs more cache memory than the limit allows.
            ConfigError: A drafter named in a request cannot be used, or the number of torch
                threads has changed since the batch-invariance check. Also raised if this process
                was forked while another thread ran a step.
        """
        self._turn.check()
        self.invariance.check_threads()
        if self._turn.inherited:
            with self._turn, self._drafters_turn:
                self._turn.inherited = False
                self._lifecycle.disown()
        if self._parallel is not None:
            self._parallel.check_requests(requests, self._max_batch)
        for request in requests:
            self._kv_cache.check(request)
        states = self._drafters.find_all(requests, self._schedule.drafters_in_use)
        handles = [
            RequestHandle(
                request, state, deque() if keep_outcomes else None, keep_slots, self.invariance.on
            )
            for request, state in zip(requests, states, strict=True)
        ]
        self._schedule.waiting.join(handles)
        return handles

    def has_drafters(self, requests: Sequence[Request]) -> bool:
        """Return whether all drafters named in the requests already exist."""
        return all(self._drafters.knows(request.params.speculation) for request in requests)

    def step(self) -> list[Outcome]:
        """Run one decode step for a group of requests, and end finished requests.

        An error in a drafter ends the requests of that drafter. Any other error ends all requests
        of the step.

        Returns:
            The outcomes of the step.
        Raises:
            ConfigError: A drafter called its own engine from inside a step.
        """
        with self._turn, self._drafters_turn:
            if self._stepping:
                raise ConfigError(
                    "got a call from inside a step of the same engine; expected a call between"
                    " steps. Use a separate LLM."
                )
            self._stepping = True
            try:
                return self._runner.run()
            finally:
                self._stepping = False
                if self._withdrawn:
                    self.withdraw([self._withdrawn.popleft() for _ in range(len(self._withdrawn))])

    def check_loaded_costs(self) -> None:
        """Check a cost curve loaded from disk immediately, before an answer needs it.

        The method does nothing if the caller passed the curve, if this engine measured it, or if no
        curve is needed.
        """
        with self._turn:
            if self.draft_budget is not None:
                self.draft_budget.check_loaded()

    def finish_draft_head(self) -> None:
        """Load or fit the default drafter's draft head immediately, if it uses one."""
        with self._turn, self._drafters_turn:
            self._runner.finish_draft_head(self.drafter)

    def admit(self) -> None:
        """Assign cache slots to waiting requests, and start their drafters."""
        if len(self._schedule.waiting):
            with self._turn, self._drafters_turn:
                self._lifecycle.admit()

    def withdraw(self, handles: Iterable[RequestHandle]) -> None:
        """End requests in any state, and free their resources."""
        if self._turn.torn:
            return
        with self._turn, self._drafters_turn:
            # The garbage collector may close an abandoned stream inside a step of its thread.
            if self._stepping:
                self._withdrawn.extend(handles)
                return
            for handle in handles:
                self._lifecycle.drop(handle)

    def _use(self, drafter: Drafter, spec: str | None) -> None:
        self._drafters.use(drafter, spec)
        self._drafters_turn = turn_of(drafter)  # other engines may share the drafter
