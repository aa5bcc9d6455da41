"""Schedule requests: admission, preemption and selection for the next step."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from paceline.engine.grouping import StepGroup, select_prompts
from paceline.engine.kv_cache_manager import KVCacheManager
from paceline.engine.request_handle import RequestHandle
from paceline.engine.request_queue import RequestQueue

if TYPE_CHECKING:
    from paceline.core.request import Request
    from paceline.core.target import Target
    from paceline.draft_budget.drafts import DrafterState
    from paceline.draft_budget.prefill_chunking import PrefillChunkController


class Scheduler:
    """Stores an engine's waiting and active requests, and selects those for each step.

    Prompts are processed before decode steps, in separate forward passes. While a stream is open,
    the scheduler alternates decode steps with prompt chunks that are short enough not to stall the
    stream.

    Args:
        model: Target model.
        kv_cache: Manager of the cache slots.
        max_batch: Maximum number of active requests; None means no limit.
        max_rows: Maximum number of rows in a forward pass, including padding; None means no limit.
        chunking: Controller that limits prefill chunks while streams are open; None means full
            chunks.
    Attributes:
        waiting: Requests without a slot.
        active: Requests with a slot, in the order of admission.
        preemptions: Number of preemptions so far.
    """

    def __init__(
        self,
        model: Target,
        kv_cache: KVCacheManager,
        max_batch: int | None,
        max_rows: int | None,
        chunking: PrefillChunkController | None,
    ) -> None:
        self._model, self._kv_cache = model, kv_cache
        self._max_batch, self._max_rows = max_batch, max_rows
        self.waiting = RequestQueue()
        self.active: list[RequestHandle] = []
        self.preemptions = 0
        self._chunking = chunking
        self._in_prefill = False  # whether the newest group consists of prompts

    def drafters_in_use(self) -> set[DrafterState]:
        """Return the drafters of all waiting and active requests."""
        return {handle.drafter_state for handle in (*self.waiting, *self.active.copy())}

    def admit(self, handle: RequestHandle) -> bool:
        """Assign a slot to a waiting request; if needed, preempt lower-priority requests.

        Returns:
            True if the request has a slot. False if no slot is free and no active request has a
            lower priority.
        Raises:
            CapacityError, MemoryError, RuntimeError: The cache cannot grow enough for the request.
                The request then counts as active.
        """
        self.waiting.leave(handle)
        while True:
            others = [other.request for other in self.active]
            free = None if self._max_batch is None else self._max_batch - len(others)
            waiting = self._waiting_soon(free)
            self.active.append(handle)
            if free != 0 and self._kv_cache.open(handle.request, others, waiting):
                handle.prefilling = handle.request.pending > 1
                return True
            self.active.remove(handle)
            last = max(self.active, key=lambda other: other.rank, default=None)
            if last is None or last.request.params.priority <= handle.request.params.priority:
                self.waiting.join([handle])
                return False
            self.preempt(last)

    def _waiting_soon(self, free: int | None) -> list[Request]:
        """Return the waiting requests that could be admitted after the next admission.

        Args:
            free: Number of free slots; None means no limit.
        """
        number = None if free is None else max(0, free - 1)
        return [handle.request for handle in islice(self.waiting, number)]

    def preempt(self, handle: RequestHandle) -> None:
        """Preempt an active request: free its slot, and queue it again."""
        self.active.remove(handle)
        self._kv_cache.close(handle.request)
        handle.request.cached = 0
        self.preemptions += 1
        self.waiting.join([handle])

    def remove(self, handle: RequestHandle) -> None:
        """Remove a waiting or active request."""
        if not self.waiting.leave(handle):
            self.active.remove(handle)

    def grow_cache(self) -> None:
        """Grow the cache for the next tokens, and preempt requests if memory runs out.

        Requests with the lowest priority are preempted first, and among them the newest.
        """
        while (
            not self._kv_cache.grow([handle.request for handle in self.active])
            and len(self.active) > 1
        ):
            self.preempt(max(self.active, key=lambda handle: handle.rank))

    def next_group(self) -> StepGroup:
        """Choose the requests for the next step.

        Returns:
            The requests in the order of their slots; empty if no request is active.
        """
        prompts = [handle for handle in self.active if handle.prefilling]
        decoding = [handle for handle in self.active if not handle.prefilling]
        chunk, max_rows = self._model.prefill_chunk, self._max_rows
        if (
            prompts
            and self._chunking is not None
            and any(handle.outcomes is not None for handle in decoding)
        ):
            if self._in_prefill:
                prompts = []
            else:
                chunk = min(self._chunking.chunk, chunk)
                max_rows = chunk if max_rows is None else min(chunk, max_rows)
        self._in_prefill = bool(prompts)
        if prompts:
            return StepGroup(select_prompts(prompts, chunk, max_rows, self._model.packs), chunk)
        self._model.slots.gather([handle.request for handle in decoding])
        return StepGroup(sorted(decoding, key=_slot), chunk)

    def record_step(self, tokens: int, seconds: float) -> None:
        """Record the duration of the latest step, whose requests `next_group` chose.

        The controller of the prefill chunks uses these durations.

        Args:
            tokens: Number of pending tokens that the step computed.
            seconds: Duration of the step.
        """
        if self._chunking is not None:
            if self._in_prefill:
                self._chunking.note_prompts(tokens, seconds)
            else:
                self._chunking.note_decode(seconds)


def _slot(handle: RequestHandle) -> int:
    return handle.request.slot
