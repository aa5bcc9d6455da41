"""Assign KV-cache slots, and keep finished requests' slots as a prefix cache."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.media import shares_media
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import IntArray
from paceline.engine.cache_space import CacheSpace, EqualSlots, SlotRegions, region_length
from paceline.engine.settings import (
    CHECKPOINT_SHARE,
    GIB,
    INHERITED_SHARE,
    MIN_PREFIX_TOKENS,
    MIN_REQUEST_TOKENS,
    SPARE_NODE_POSITIONS,
    UNKNOWN_MEMORY,
)
from paceline.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from paceline.core.target import Target


class KVCacheManager:
    """Assigns KV-cache slots, and keeps finished requests cached for later prompts.

    Args:
        model: Target model.
        max_batch: Maximum number of requests that have a slot at the same time; None means no
            limit.
        max_kept: Maximum number of finished requests that stay cached; the least recently used
            request is evicted first.
        max_bytes: Maximum size of the cache in bytes; None means no limit.
    Attributes:
        reused: Number of prompt tokens found in the cache so far.
    Raises:
        ConfigError: The cache cannot hold even one request.
    """

    def __init__(
        self, model: Target, max_batch: int | None, max_kept: int, max_bytes: int | None
    ) -> None:
        self._model = model
        self._max_kept, self._max_bytes = max_kept, max_bytes
        if max_kept and model.keeps_states:
            share = int(CHECKPOINT_SHARE * (max_bytes or UNKNOWN_MEMORY))
            model.slots.checkpoints.max_bytes = share
            max_bytes = None if max_bytes is None else max_bytes - share
        # Tokens of each finished request in the cache, least recently used request first.
        self._kept: OrderedDict[Request, IntArray] = OrderedDict()
        max_slots = None if max_batch is None else max_batch + max_kept
        space = SlotRegions if model.slots.has_regions else EqualSlots
        self._space: CacheSpace = space(
            model, max_slots, max_bytes, self._kept, self._forget_oldest
        )
        self.reused = 0
        self._require_space()

    def _require_space(self) -> None:
        """Check that the cache can hold the shortest request."""
        positions = MIN_REQUEST_TOKENS + SPARE_NODE_POSITIONS
        if self._max_bytes is None or self._space.max_positions(1) >= positions:
            return
        needed = self._model.state_bytes + positions * self._model.position_bytes
        if self._max_kept and self._model.keeps_states:
            needed = int(needed / (1 - CHECKPOINT_SHARE))
        # Rounded up, so that the stated value is large enough.
        smallest = math.ceil((needed + 1) / GIB * 1e6) / 1e6
        raise ConfigError(
            f"\0cache_gib\0: got {self._max_bytes / GIB:.3g} GiB; expected at least"
            f" {smallest:.6f}, the memory for a request of {MIN_REQUEST_TOKENS} tokens."
            " Raise it, or load a smaller model."
        )

    def preallocate(self, max_length: int | None) -> None:
        """Prepare the cache for its maximum size, so that it grows without copies.

        Args:
            max_length: Maximum number of tokens per request; None means the model's context length.
        Raises:
            CapacityError: The device has too little free memory for the largest cache that the
                memory limit allows.
        """
        context = self._model.context_length
        self._space.preallocate(min(max_length or context, context))

    @property
    def num_kept(self) -> int:
        """Return the number of finished requests in the cache."""
        return len(self._kept)

    def usage(self) -> float:
        """Return the fraction of the cache's memory limit that is in use, from 0 to 1.

        Without a limit, return the fraction of the allocated memory that is in use.
        """
        each, slots = self._model.position_bytes, len(self._model.slots)
        states = self._model.state_bytes
        limit = self._max_bytes or self._space.num_positions * each + slots * states
        used = self._model.slots.tokens * each + slots * states
        return min(1.0, used / limit) if limit else 0.0

    def check(self, request: Request) -> None:
        """Check that an otherwise empty cache has room for a request.

        Raises:
            CapacityError: The request needs more memory than the cache may use.
        """
        limit = self._space.max_positions(1)
        if request.max_length + SPARE_NODE_POSITIONS > limit:
            raise CapacityError(
                f"got a request of up to {request.max_length} tokens; expected at most"
                f" {max(0, limit - SPARE_NODE_POSITIONS)}, the limit of the cache's memory. Shorten"
                " it, or raise \0cache_gib\0."
            )

    def open(
        self, request: Request, active: Sequence[Request], waiting: Sequence[Request] = ()
    ) -> bool:
        """Assign a slot to a request, and fill it with the longest cached prefix.

        Args:
            request: The request to admit.
            active: Requests that have a slot.
            waiting: Requests that are likely to be admitted next.
        Returns:
            True if the request now has a slot; False if the cache is currently full.
        Raises:
            CapacityError: The request is longer than the model's context.
            ConfigError, UnsupportedModelError: The model cannot process the request's images.
        """
        self._model.check_length(request)
        if self._model.stale:
            self.forget_all()
        source, length = self._longest_prefix(request, active)
        inherited = None  # tokens of a finished request whose slot the new request inherits
        if source is not None and source in self._kept:
            self._kept.move_to_end(source)
            if length >= INHERITED_SHARE * len(self._kept[source]):
                inherited = self._kept.pop(source)
        fits = False
        try:
            fits = self._space.admit(request, active, waiting)
        finally:
            if source is not None and inherited is not None and not fits:
                self._kept[source] = inherited
        if not fits:
            return False
        self._model.open(request, None if inherited is None else source, length)
        self._model.slots.lengthen(request, region_length(request))
        # The source has no slot if `request` inherited it, or if the source was evicted.
        if source is not None and source.slot >= 0:
            self._model.slots.copy(request, source, length)
        request.counters.cached_tokens += request.cached
        self.reused += request.cached
        if request.media is not None:
            if source is not None and request.cached:
                request.position_offset = source.position_offset
            else:
                self._model.prefill_media(request)
        return True

    def grow(self, active: Sequence[Request]) -> bool:
        """Make room for the next tokens of all requests; return False if memory runs out."""
        return self._space.grow(active)

    def close(self, request: Request, reusable: bool = True) -> None:
        """End a request, and free its slot or keep the slot's contents for later prompts.

        Args:
            request: Request to end.
            reusable: Whether later prompts may reuse the cached tokens.
        """
        # Accepted tokens are pending if recurrent states could not be advanced past them.
        checked = self._model.keeps_states and len(request) > request.prompt_length
        if request.pending > 1 and not checked:
            # No logits have been computed that would reveal non-finite keys and values.
            request.tainted, reusable = True, False
        if reusable and self._max_kept and request.cached >= MIN_PREFIX_TOKENS:
            self._keep(request)
        self.free(request)

    def free(self, request: Request) -> None:
        """Free a request's slot, if it has one."""
        self._model.close(request)

    def forget_all(self) -> None:
        """Free the slots of all finished requests."""
        while self._forget_oldest():
            pass

    def _keep(self, request: Request) -> None:
        """Keep a finished request cached; evict kept requests that are prefixes of it."""
        prefix = Request(request.token_ids[: request.cached], SamplingParams())
        prefix.rotary_length = request.rotary_length
        prefix.prompt_length = min(request.prompt_length, request.cached)
        if request.media is not None:
            prefix.media, prefix.position_offset = request.media.key(), request.position_offset
        self._model.slots.inherit(prefix, request, request.cached)
        self._model.slots.shorten(prefix)
        tokens = np.array(prefix.token_ids, dtype=np.int64)
        covered = [
            other
            for other, known in self._kept.items()
            if _common_prefix(known, tokens) == len(known)
            and shares_media(other.media, prefix.media, len(known))
        ]
        for other in covered:
            self._forget(other)
        self._kept[prefix] = tokens
        if len(self._kept) > self._max_kept:
            self._forget_oldest()

    def _longest_prefix(
        self, request: Request, active: Sequence[Request]
    ) -> tuple[Request | None, int]:
        """Find the cached request whose tokens match the longest prefix of the prompt.

        Returns:
            The cached request and the prefix length in tokens. The request is None if no cached
            prefix can be reused; the length is then meaningless.
        """
        if request.scoring:  # scoring needs logits, which are not cached
            return None, 0
        if not self._max_kept and request.media is None:
            return None, 0
        # The last token is always computed, because its logits choose the next token.
        prompt = np.array(request.token_ids[:-1], dtype=np.int64)
        # An image is copied even if it has few tokens, because encoding it again is slow.
        best, best_length = None, 0 if request.media else MIN_PREFIX_TOKENS - 1
        running = (
            (member, np.array(member.token_ids[: member.cached], dtype=np.int64))
            for member in active
        )
        for source, tokens in (*self._kept.items(), *running):
            length = self._model.reusable_length(source, _common_prefix(tokens, prompt))
            if (
                length > best_length
                and self._model.shares_prefix(source, request)
                and shares_media(source.media, request.media, length)
            ):
                best, best_length = source, length
        return best, best_length

    def _forget(self, prefix: Request) -> None:
        del self._kept[prefix]
        self._model.close(prefix)

    def _forget_oldest(self) -> bool:
        if not self._kept:
            return False
        self._forget(next(iter(self._kept)))
        return True


def _common_prefix(first: IntArray, second: IntArray) -> int:
    """Return the length of the common prefix of two texts, in tokens."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
