"""What an engine has answered so far, searched as a datastore is, in memory alone: no file, no
thread.

Answers that have ended lie in one shard, those that ended since it was sorted and those that go on
in another. Each is sorted anew when a quarter more has come: a token is sorted about ten times, in
all about a microsecond, and what cannot be found yet is the newest fifth of the smaller shard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.running import RunningOutputs
from paceline.datastore.shard import Shard

_GROWTH = 4  # a shard is sorted anew when this part of it has come
_LEAST, _LEAST_OLD = (
    64,
    1024,
)  # tokens that are worth sorting, and worth sorting with all that is old
_WIDTH = 4  # bytes of a token
_ANY_TOKEN = 256**_WIDTH - 1  # tokens are below it; it separates answers

_Text = NDArray[np.uint32]


class AnswerMemory:
    """Answers, learnt and searched as those of a live datastore are.

    Args:
        most: tokens of ended answers that are kept, the newest; as many at most of those that go
            on.
    Attributes:
        shards: what can be searched now; a new tuple whenever that changes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._old: deque[_Text] = deque()  # answers in the first shard, the oldest first
        self._ended: list[_Text] = []  # that are not in it yet
        self._going = RunningOutputs(most)
        self._old_shard: tuple[Shard, ...] = ()
        self._sorted = 0  # tokens in the other shard
        self.shards: tuple[Shard, ...] = ()
        _shard(
            [np.zeros(2, dtype=np.uint32)]
        )  # what sorts is compiled now: no request waits for that

    def follow(self, outputs: Mapping[int, Sequence[int]]) -> None:
        """Let answers that go on be searched as well, and sort what came since if that is due.

        Args:
            outputs: by a number of its own, what each has got since the last call.
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
        """Forget an answer that was followed: it has ended, and is kept where it is appended."""
        self._going.drop(output)

    def append(self, token_ids: Sequence[int]) -> None:
        """Keep an answer that has ended; it is sorted with one of the next calls of `follow`."""
        self._ended.append(np.array(token_ids, dtype=np.uint32))

    def _age(self) -> None:
        """Put what has ended into the first shard, and forget the oldest beyond `most`."""
        self._old.extend(self._ended)
        self._ended.clear()
        spare = _size(self._old) - self._most
        while spare > 0:
            spare -= self._old.popleft().size
        self._old_shard = _shard(self._old)


def _size(texts: Iterable[_Text]) -> int:
    return sum(text.size for text in texts)


def _shard(texts: Collection[_Text]) -> tuple[Shard, ...]:
    """Sort some texts; nothing where there are none."""
    return (Shard.in_memory(texts, _ANY_TOKEN, _WIDTH),) if texts else ()
