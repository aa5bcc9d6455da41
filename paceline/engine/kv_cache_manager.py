"""Room in the cache: slots for requests, and what ended ones have left there for prompts that
begin like them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.core.argument_checks import is_number
from paceline.core.request import Request, SamplingParams
from paceline.core.target import Target
from paceline.core.tree import IntArray
from paceline.errors import CapacityError, ConfigError
from paceline.util.machine import available_memory

_AHEAD = 512  # positions allocated before they are needed; doubled each time
_SPARE_NODES = 32  # positions set aside for draft nodes; larger trees make the cache grow once
# positions an answer may grow by at once after its request was let in, so that it is not sent away
# again soon
_HEADROOM = 128
_LEAST_COMMON = 16  # tokens; below, feeding them is as fast as finding them
_SHARE = 0.8  # of the memory that is available, unless it is said how much the cache may take
_CONTINUED = 0.9  # of what was kept: a prompt that has so much of it takes its place, others copy


class KVCacheManager:
    """Decides what fits.

    Args:
        most_rows: requests that may have a slot at once; None = any number.
        most_kept: ended sequences whose keys and values stay in the cache, the last ones used.
        most_bytes: of the cache; None = any number.
    Attributes:
        reused: prompt tokens that were found in the cache.
    """

    def __init__(
        self, model: Target, most_rows: int | None, most_kept: int, most_bytes: int | None
    ) -> None:
        self._model, self._most_rows = model, most_rows
        self._most_kept, self._most_bytes = most_kept, most_bytes
        # with their tokens, the one used last at the end
        self._kept: OrderedDict[Request, IntArray] = OrderedDict()
        self.reused = 0

    @property
    def kept(self) -> int:
        """Ended sequences that are in the cache."""
        return len(self._kept)

    def usage(self) -> float:
        """Share of the cache's memory that holds tokens; of what is allocated where it may take
        any.
        """
        each = self._model.position_bytes
        most = self._most_bytes or len(self._model.slots) * self._model.capacity * each
        return min(1.0, self._model.slots.tokens * each / most) if most else 0.0

    def check(self, request: Request) -> None:
        """Refuse what could not even be answered alone.

        Raises:
            CapacityError: it needs more than the cache may have.
        """
        most = self._most_positions(1)
        if request.max_length + _SPARE_NODES > most:
            raise CapacityError(
                f"got a request of up to {request.max_length} tokens; expected at most"
                f" {max(0, most - _SPARE_NODES)}, for which the cache has memory. Shorten it, or"
                " raise cache_gib."
            )

    def open(self, request: Request, active: Sequence[Request]) -> bool:
        """Give `request` a slot, with as much of it as the cache knows; returns whether there is
        room for it now.

        Args:
            active: the requests that have one.
        """
        self._model.check_length(request)
        if self._model.stale:
            self.forget_all()
        longest = (
            max(min(one.max_length, len(one) + _HEADROOM) for one in (*active, request))
            + _SPARE_NODES
        )
        source, length = self._longest_common(request, active)
        tokens = None  # of an ended sequence whose place it takes
        if source is not None and source in self._kept:
            self._kept.move_to_end(source)
            if length >= _CONTINUED * len(self._kept[source]):
                tokens = self._kept.pop(source)
        needed, fits = max(one.max_length for one in (*active, request)) + _SPARE_NODES, False
        try:
            fits = self._ensure(len(active) + 1, longest, min(longest + _AHEAD, needed))
        finally:
            if source is not None and tokens is not None and not fits:
                self._kept[source] = tokens
        if not fits:
            return False
        self._model.open(request, None if tokens is None else source, length)
        if (
            source is not None and source.slot >= 0
        ):  # it neither lost its place to `request` nor had to go
            self._model.slots.copy(request, source, length)
        request.counters.cached_tokens += request.cached
        self.reused += request.cached
        return True

    def grow(self, active: Sequence[Request]) -> bool:
        """Make room for the next tokens of all requests; returns whether there is."""
        longest = max((len(request) for request in active), default=0) + _SPARE_NODES
        if longest <= self._model.capacity:
            return True
        needed = max(request.max_length for request in active) + _SPARE_NODES
        return self._ensure(
            len(active), longest, min(max(longest + _AHEAD, 2 * self._model.capacity), needed)
        )

    def close(self, request: Request, reusable: bool = True) -> None:
        """Take its slot from `request`, and keep what is there for later prompts, unless it is
        not `reusable`.
        """
        if request.pending > 1:  # no logits have shown yet whether what it holds are numbers
            request.tainted, reusable = True, False
        if reusable and self._most_kept and request.cached >= _LEAST_COMMON:
            held = Request(request.token_ids[: request.cached], SamplingParams())
            held.rotary_length = request.rotary_length
            self._model.slots.inherit(held, request, request.cached)
            tokens = np.array(held.token_ids, dtype=np.int64)
            for other in [
                other for other, known in self._kept.items() if _common(known, tokens) == len(known)
            ]:
                self._forget(other)
            self._kept[held] = tokens
            if len(self._kept) > self._most_kept:
                self._forget_oldest()
        self.free(request)

    def free(self, request: Request) -> None:
        """Take its slot from `request`, if it has one."""
        self._model.close(request)

    def forget_all(self) -> None:
        """Free what is kept."""
        while self._forget_oldest():
            pass

    def _longest_common(
        self, request: Request, active: Sequence[Request]
    ) -> tuple[Request | None, int]:
        """Return the sequence in the cache that has most in common with the beginning of
        `request`, and how many tokens.
        """
        if not self._most_kept or request.scoring:  # the cache has no logits
            return None, 0
        # the last one is fed in any case: its answer is asked for
        wanted = np.array(request.token_ids[:-1], dtype=np.int64)
        best, most = None, _LEAST_COMMON - 1
        running = ((one, np.array(one.token_ids[: one.cached], dtype=np.int64)) for one in active)
        for source, tokens in (*self._kept.items(), *running):
            length = _common(tokens, wanted)
            if length > most and self._model.shares_prefix(source, request):
                best, most = source, length
        return best, most

    def _ensure(self, rows: int, positions: int, ideal: int) -> bool:
        """Have at least so many slots of so many positions beside the kept ones, which go where
        they are in the way.
        """
        while True:
            slots = rows + len(self._kept)
            held = max([positions, *map(len, self._kept)])
            wanted = self._model.capacity if self._model.capacity >= held else max(ideal, held)
            for count in (self._roomy(slots), slots):
                most = self._most_positions(count)
                if most >= held and self._resized(count, min(wanted, most), rows):
                    return True
            if not self._forget_oldest():
                return False

    def _resized(self, slots: int, positions: int, rows: int) -> bool:
        try:
            self._model.slots.resize(slots, positions)
        except (MemoryError, RuntimeError) as error:
            short = isinstance(error, MemoryError | torch.OutOfMemoryError) or "alloc" in str(error)
            if not short or (rows == 1 and not self._kept):
                raise
            return False
        return True

    def _roomy(self, slots: int) -> int:
        """Return how many slots to have where so many are needed: growing copies the cache, so
        that it is to be rare.
        """
        there = len(self._model.slots)
        if slots <= there or self._most_rows is None:
            return max(slots, there)
        return max(slots, min(2 * there, self._most_rows + self._most_kept))

    def _most_positions(self, slots: int) -> int:
        """Return how many positions so many slots may have."""
        each = slots * self._model.position_bytes
        return 1 << 40 if self._most_bytes is None or not each else self._most_bytes // each

    def _forget(self, held: Request) -> None:
        del self._kept[held]
        self._model.close(held)

    def _forget_oldest(self) -> bool:
        if not self._kept:
            return False
        self._forget(next(iter(self._kept)))
        return True


def most_cache_bytes(model: PreTrainedModel, cache_gib: float | None) -> int | None:
    """Return the most bytes a cache may take beside a loaded model; None where nobody says.

    Raises:
        ConfigError: `cache_gib` is no positive number.
    """
    if cache_gib is not None:
        if not is_number(cache_gib) or cache_gib <= 0:
            raise ConfigError(
                f"cache_gib: got {cache_gib!r}; expected a positive number of GiB, or None."
            )
        return int(cache_gib * (1 << 30))
    available = (
        torch.cuda.mem_get_info(model.device)[0]
        if model.device.type == "cuda"
        else available_memory()
    )
    return int(_SHARE * available) or None


def _common(one: IntArray, other: IntArray) -> int:
    """Return how many first tokens are the same."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
