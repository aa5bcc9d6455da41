"""Cache an engine's recent answers in memory, searchable like a datastore.

The first shard contains finished answers. The second shard contains unfinished answers, and answers
that finished after the first shard was last sorted. A shard is sorted again once it has grown by a
quarter. Tokens added since the last sort cannot be found yet; they make up at most a fifth of a
shard. Each token is sorted about ten times, which takes about a microsecond per token in total.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.running import RunningOutputs
from paceline.datastore.shard import Shard
from paceline.drafters.sssd.settings import GROWTH_SHARE, MIN_FINISHED_TOKENS, MIN_NEW_TOKENS

_WIDTH = np.dtype(np.uint32).itemsize  # bytes of a token
_ANY_TOKEN = int(np.iinfo(np.uint32).max)  # larger than all tokens; separates the answers

_Text = NDArray[np.uint32]


class AnswerMemory:
    """Caches answers in memory, with the same update methods as `Datastore`.

    Args:
        max_tokens: Maximum total number of tokens in finished answers. The same maximum applies
            separately to unfinished answers.
    Attributes:
        shards: Sorted shards to search. Each change replaces the whole tuple.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._old: deque[_Text] = deque()  # answers in the first shard, the oldest first
        self._finished: list[_Text] = []  # answers that are not in the first shard yet
        self._unfinished = RunningOutputs(max_tokens)
        self._old_shard: tuple[Shard, ...] = ()
        self._sorted = 0  # number of tokens in the second shard
        self.shards: tuple[Shard, ...] = ()
        _shard([np.zeros(1, dtype=np.uint32)])  # compiles the sort now, not during an answer

    def follow(self, outputs: Mapping[int, Sequence[int]]) -> None:
        """Add new tokens of unfinished answers, and sort the shards again if needed.

        Args:
            outputs: New tokens since the previous call, by request id.
        """
        for output, token_ids in outputs.items():
            self._unfinished.extend(output, token_ids)
        finished = _size(self._finished)
        known = finished + self._unfinished.tokens
        if known < self._sorted:  # answers were dropped
            self._sorted = 0
        if known - self._sorted < max(MIN_NEW_TOKENS, self._sorted // GROWTH_SHARE):
            return
        if finished >= max(MIN_FINISHED_TOKENS, _size(self._old) // GROWTH_SHARE):
            self._age()
        texts = [*self._finished, *self._unfinished.documents()]
        self._sorted = _size(texts)
        self.shards = self._old_shard + _shard(texts)

    def unfollow(self, output: int) -> None:
        """Remove an unfinished answer; once it is finished, `append` adds it again."""
        self._unfinished.drop(output)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add a finished answer, which a later call of `follow` makes searchable."""
        self._finished.append(np.array(token_ids, dtype=np.uint32))

    def _age(self) -> None:
        """Move finished answers to the first shard, and evict its oldest answers."""
        self._old.extend(self._finished)
        self._finished.clear()
        spare = _size(self._old) - self._max_tokens
        while spare > 0:
            spare -= self._old.popleft().size
        self._old_shard = _shard(self._old)


def _size(texts: Iterable[_Text]) -> int:
    return sum(text.size for text in texts)


def _shard(texts: Collection[_Text]) -> tuple[Shard, ...]:
    """Build a sorted shard from texts; without texts, return an empty tuple."""
    return (Shard.in_memory(texts, _ANY_TOKEN, _WIDTH),) if texts else ()
