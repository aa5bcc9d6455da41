"""Cache recent answers of an engine in memory, searchable like a datastore.

Finished answers lie in one shard; answers that finished since it was sorted, and unfinished ones,
in another. Each shard is sorted again once it has grown by a quarter. A token is therefore sorted
about ten times, which takes about a microsecond in all. At most the newest fifth of the smaller
shard cannot be found yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.running import RunningOutputs
from paceline.datastore.shard import Shard

_GROWTH = 4  # a shard is sorted again once it has grown by this part
# tokens that are worth sorting, and worth sorting with all that is old
_LEAST, _LEAST_OLD = (64, 1024)
_WIDTH = 4  # bytes of a token
_ANY_TOKEN = 256**_WIDTH - 1  # tokens are below it; it separates answers

_Text = NDArray[np.uint32]


class AnswerMemory:
    """Cache answers in memory, with the interface of a datastore that is updated.

    Args:
        most: Maximum number of tokens of finished answers, and of unfinished ones.
    Attributes:
        shards: Searchable shards; a new tuple whenever they change.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._old: deque[_Text] = deque()  # answers in the first shard, the oldest first
        self._ended: list[_Text] = []  # that are not in it yet
        self._going = RunningOutputs(most)
        self._old_shard: tuple[Shard, ...] = ()
        self._sorted = 0  # tokens in the other shard
        self.shards: tuple[Shard, ...] = ()
        # what sorts is compiled now: no request waits for that
        _shard([np.zeros(2, dtype=np.uint32)])

    def follow(self, outputs: Mapping[int, Sequence[int]]) -> None:
        """Add tokens of unfinished answers, and sort the shards if that is due.

        Args:
            outputs: New tokens since the last call, by request id.
        """
        for output, token_ids in outputs.items():
            self._going.extend(output, np.array(token_ids, dtype=np.uint32))
        ended = _size(self._ended)
        known = ended + self._going.tokens
        if known < self._sorted:  # some have been forgotten
            self._sorted = 0
        if known - self._sorted < max(_LEAST, self._sorted // _GROWTH):
            return
        if ended >= max(_LEAST_OLD, _size(self._old) // _GROWTH):
            self._age()
        texts = [*self._ended, *self._going.documents()]
        self._sorted = _size(texts)
        self.shards = self._old_shard + _shard(texts)

    def unfollow(self, output: int) -> None:
        """Drop an unfinished answer; once finished, it is appended."""
        self._going.drop(output)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add a finished answer; one of the next calls of `follow` sorts it."""
        self._ended.append(np.array(token_ids, dtype=np.uint32))

    def _age(self) -> None:
        """Move finished answers to the first shard, and evict the oldest."""
        self._old.extend(self._ended)
        self._ended.clear()
        spare = _size(self._old) - self._most
        while spare > 0:
            spare -= self._old.popleft().size
        self._old_shard = _shard(self._old)


def _size(texts: Iterable[_Text]) -> int:
    return sum(text.size for text in texts)


def _shard(texts: Collection[_Text]) -> tuple[Shard, ...]:
    """Sort texts into a shard; none for no texts."""
    return (Shard.in_memory(texts, _ANY_TOKEN, _WIDTH),) if texts else ()
