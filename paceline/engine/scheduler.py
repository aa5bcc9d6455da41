"""Who has a place in the batch, who waits for one, and who takes part in the next step."""

from __future__ import annotations

from operator import attrgetter

from paceline.draft_budget.prefill_chunking import PrefillChunkController
from paceline.engine.grouping import select_prompts
from paceline.engine.kv_cache_manager import KVCacheManager
from paceline.engine.request_handle import RequestHandle
from paceline.engine.request_queue import RequestQueue
from paceline.model.cached_lm import CachedLM


class Scheduler:
    """Requests of one engine, waiting and active.

    Prompts go first, in forwards of their own. While somebody reads a stream, its steps take turns
    with forwards that feed only as much of the prompts as does not hold it up for long.

    Args:
        most: sequences at once; None = any number.
        most_rows: of tokens and padding in one forward; None = any number.
        paced: clocks may decide how much of a prompt is fed at once.
    Attributes:
        active: in the order in which they got their place.
        preemptions: requests that had to give theirs back for a while.
    """

    def __init__(
        self,
        model: CachedLM,
        room: KVCacheManager,
        most: int | None,
        most_rows: int | None,
        paced: bool,
    ) -> None:
        self._model, self._room, self._most, self._most_rows = model, room, most, most_rows
        self.waiting = RequestQueue()
        self.active: list[RequestHandle] = []
        self.preemptions = 0
        self._whole_chunk: int | None = None  # the model's, while it is shortened
        self._pace = PrefillChunkController(model.prefill_chunk) if paced else None
        self._feeds_prompts = False  # in the newest group

    def place(self, handle: RequestHandle) -> bool:
        """Give a waiting request its place, also one that somebody of lesser priority has; returns
        whether there is any.

        Raises:
            CapacityError, MemoryError, RuntimeError: there never will be. It counts as active then.
        """
        self.waiting.leave(handle)
        while True:
            others = [other.request for other in self.active]
            self.active.append(handle)
            if (self._most is None or len(others) < self._most) and self._room.open(
                handle.request, others
            ):
                handle.prefilling = handle.request.pending > 1
                return True
            self.active.remove(handle)
            last = max(self.active, key=lambda other: other.rank, default=None)
            if last is None or last.request.params.priority <= handle.request.params.priority:
                self.waiting.join([handle])
                return False
            self.preempt(last)

    def preempt(self, handle: RequestHandle) -> None:
        """Send an active request back to wait; it goes on where it was once it has a place
        again.
        """
        self.active.remove(handle)
        self._room.close(handle.request)
        handle.request.cached = 0
        self.preemptions += 1
        self.waiting.join([handle])

    def remove(self, handle: RequestHandle) -> None:
        """Take a request out of where it is, waiting or active."""
        if not self.waiting.leave(handle):
            self.active.remove(handle)

    def make_room(self) -> None:
        """Let the cache grow with the answers; where it must not, those who came last give their
        place back.
        """
        while (
            not self._room.grow([handle.request for handle in self.active]) and len(self.active) > 1
        ):
            self.preempt(max(self.active, key=lambda handle: handle.rank))

    def next_group(self) -> list[RequestHandle]:
        """Return those who take part in the next step, in the order of their slots; none where
        nobody is active.
        """
        prompts = [handle for handle in self.active if handle.prefilling]
        others = [handle for handle in self.active if not handle.prefilling]
        if self._whole_chunk is not None:
            self._model.prefill_chunk, self._whole_chunk = self._whole_chunk, None
        most_rows = self._most_rows
        if (
            prompts
            and self._pace is not None
            and any(handle.outcomes is not None for handle in others)
        ):
            if self._feeds_prompts:
                prompts = []
            else:
                self._whole_chunk = self._model.prefill_chunk
                chunk = self._model.prefill_chunk = min(self._pace.chunk, self._whole_chunk)
                most_rows = chunk if most_rows is None else min(chunk, most_rows)
        self._feeds_prompts = bool(prompts)
        if prompts:
            return select_prompts(prompts, self._model.prefill_chunk, most_rows, self._model.packs)
        self._model.slots.gather([handle.request for handle in others])
        return sorted(others, key=attrgetter("request.slot"))

    def note(self, tokens: int, seconds: float) -> None:
        """Take in what the step of the newest group took, which fed so many tokens."""
        if self._pace is not None:
            if self._feeds_prompts:
                self._pace.note_prompts(tokens, seconds)
            else:
                self._pace.note_decode(seconds)
