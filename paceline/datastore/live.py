"""An open store, and finished outputs on their way into it: first in memory, then on disk; those
that go on in memory only.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from paceline.datastore.gathering import Document, checked
from paceline.datastore.layout import Manifest, place_of, read_manifest, version_of
from paceline.datastore.lock import LockedError, writing
from paceline.datastore.running import RunningOutputs
from paceline.datastore.shard import Shard
from paceline.datastore.store import Snapshot, check_tokenizer, open_shards
from paceline.datastore.writer import Means, cleaned, extend
from paceline.errors import ConfigError, DatastoreError
from paceline.util.threads import follow_forks

_PAUSES_PER_SORT = 50  # what is in memory is not sorted more than this share of the time
_RETRY = 0.2  # seconds until a store that another writes is tried again
_RETRY_FAILED = 10.0  # and until one that could not be written is


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How outputs that are appended are kept.

    Attributes:
        bound: most tokens of appended outputs on disk; the oldest are dropped, about a quarter at a
            time.
        tail: tokens in memory that are written to disk; four times as many wait at most, where that
            fails. Of outputs that go on as many are kept at most.
        seconds: outputs are not kept longer in memory only.
        patience: seconds that `flush` and `close` wait for another writer.
    """

    bound: int = 20_000_000
    tail: int = 65_536
    seconds: float = 30.0
    patience: float = 10.0

    def __post_init__(self) -> None:
        if self.bound < 4096 or self.tail < 1 or self.seconds <= 0 or self.patience < 0:
            raise ConfigError(
                f"live: got {self}; expected bound >= 4096, tail >= 1, seconds > 0 and patience >="
                " 0. Change it."
            )


def open_store(
    path: str | Path, *, tokenizer: Any = None, live: LiveOptions | None = None
) -> Datastore:
    """Open a store for searching and for appending.

    Args:
        path: its folder; the text "demo" names the store of the embedded target, "./demo" a folder
            of that name.
        tokenizer: the one whose ids are searched (or its fingerprint); another than the store's is
            refused.
        live: how appended outputs are kept.
    Raises:
        DatastoreError: no store, a damaged one, or one of another tokenizer.
    """
    return Datastore(place_of(path), tokenizer, live or LiveOptions())


class Datastore:
    """A store that is open. Threads may share it; so may a forked child, for what it appends
    itself.

    Other processes open their own.

    Attributes:
        snapshot: what can be searched now; replaced, never changed. vocab_size, tokenizer
            (fingerprint or None): the store's.
    """

    def __init__(self, path: Path, tokenizer: Any, options: LiveOptions) -> None:
        self.path, self._options = path, options
        self._manifest_at = version_of(path)
        manifest, self._shards = open_shards(path, {})
        check_tokenizer(path, manifest.tokenizer, tokenizer)
        self.vocab_size, self.tokenizer, self._width = (
            manifest.vocab_size,
            manifest.tokenizer,
            manifest.width,
        )
        # documents that are not on disk, the oldest first
        self._tail: deque[NDArray[Any]] = deque()
        self._oldest = 0.0  # when the tail began
        self._running = RunningOutputs(options.tail)
        self._unsorted = (
            False  # whether the tail, or what goes on, has something that cannot be searched yet
        )
        self._tail_shard: tuple[Shard, ...] = ()
        self._writes = 0  # of the tail to disk
        self._changed = threading.Condition()  # guards all of these
        self._disk = threading.Lock()  # held while the tail goes to disk
        self._thread: threading.Thread | None = None
        self._closing = False
        self._publish()
        follow_forks(self)

    def __enter__(self) -> Datastore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Hold the tokenizer whose ids are searched (or its fingerprint) against the store's; None
        = not known.

        Raises:
            DatastoreError: they differ; both fingerprints are named.
        """
        check_tokenizer(self.path, self.tokenizer, tokenizer)

    def refresh(self) -> bool:
        """See what other writers have committed; costs microseconds where nothing changed. Returns
        whether it did.

        Raises:
            DatastoreError: the store is damaged, or was replaced by one of another vocabulary or
                tokenizer.
        """
        version = version_of(self.path)
        with self._changed:
            if version == self._manifest_at:
                return False
            manifest, shards = open_shards(
                self.path, {shard.info.name: shard for shard in self._shards}
            )
            self._check_same(manifest)
            self._manifest_at, self._shards = version, shards
            self._publish()
        return True

    def append(self, token_ids: Document) -> None:
        """Add a finished output. It is searchable shortly after, and on disk after
        `LiveOptions.seconds` at most.

        Raises:
            DatastoreError: an id beyond the vocabulary, or the store is closed.
        """
        document = checked(token_ids, 0, self.vocab_size).copy()
        with self._changed:
            self._check_open()
            if not document.size:
                return
            if not self._tail:
                self._oldest = time.monotonic()
            self._tail.append(document)
            self._shorten()
            self._sort_soon()

    def follow(self, outputs: Mapping[int, Document]) -> None:
        """Search outputs that go on as far as they have come, where there are two or more: shortly
        after, never on disk.

        Args:
            outputs: by a number of its own, what each has got since the last call.
        Raises:
            DatastoreError: an id beyond the vocabulary, or the store is closed.
        """
        grown = {
            output: checked(token_ids, 0, self.vocab_size).copy()
            for output, token_ids in outputs.items()
        }
        with self._changed:
            self._check_open()
            for output, document in grown.items():
                self._running.extend(output, document)
            if grown and self._running:
                self._sort_soon()

    def unfollow(self, output: int) -> None:
        """Forget an output that was followed: it has ended, and is kept where it is appended."""
        with self._changed:
            self._running.drop(output)

    def flush(self) -> None:
        """Put on disk what was appended, small shards merged.

        Raises:
            DatastoreError: it cannot be written, or another writer did not end in time; what was
                appended stays in memory.
        """
        give_up = time.monotonic() + self._options.patience
        while True:
            try:
                return self._write_tail()
            except LockedError:
                if time.monotonic() >= give_up:
                    raise
                time.sleep(_RETRY)

    def close(self) -> None:
        """Put on disk what was appended, and end the thread; searches of a snapshot may go on.

        Raises:
            DatastoreError: what `flush` raises.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self._close_at_exit)
        self.flush()

    def become_child(self) -> None:
        """Leave what waits for the disk to the parent of this forked process, and have a thread
        and locks of its own.
        """
        self._changed, self._disk = threading.Condition(), threading.Lock()
        self._tail, self._running, self._unsorted = (
            deque(),
            RunningOutputs(self._options.tail),
            False,
        )
        self._thread = None
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """Close it where nobody can catch what it raises."""
        try:
            self.close()
        except DatastoreError as error:
            warnings.warn(f"outputs were not put on disk and are lost: {error}", stacklevel=2)

    def _work(self) -> None:
        """Run as the thread: make what was appended searchable, then put it on disk."""
        retry_at = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._unsorted, self._until_write(retry_at)
                )
                if self._closing:
                    return
            start = time.monotonic()
            if self._unsorted:
                self._sort_tail()
            pause = _PAUSES_PER_SORT * (time.monotonic() - start)
            if self._until_write(retry_at) == 0:
                retry_at = self._try_write()
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)

    def _until_write(self, retry_at: float) -> float | None:
        """Return the seconds until the tail is to be put on disk; None = there is none."""
        with self._changed:
            if not self._tail:
                return None
            full = sum(document.size for document in self._tail) >= self._options.tail
            return max(
                0.0,
                max(retry_at, 0.0 if full else self._oldest + self._options.seconds)
                - time.monotonic(),
            )

    def _try_write(self) -> float:
        """Put the tail on disk if that can be done now; returns when to try again."""
        try:
            self._write_tail()
        except LockedError:
            return time.monotonic() + _RETRY
        except DatastoreError as error:
            warnings.warn(
                f"outputs were not put on disk and are kept in memory: {error}", stacklevel=2
            )
            return time.monotonic() + _RETRY_FAILED
        return 0.0

    def _sort_tail(self) -> None:
        """Make the tail and what goes on searchable, as they are now."""
        with self._changed:
            documents, writes = [*self._tail, *self._running.documents()], self._writes
            self._unsorted = False
        shard = Shard.in_memory(documents, self.vocab_size, self._width)
        with self._changed:
            if (
                writes == self._writes
            ):  # else it went to disk meanwhile, and what came since is sorted next
                self._tail_shard = (shard,)
                self._publish()

    def _write_tail(self) -> None:
        """Commit the tail as a live shard and search it there from now on."""
        with self._disk:
            with self._changed:
                documents = list(self._tail)
            if not documents:
                return
            with writing(self.path, "append"), cleaned(self.path):
                manifest = read_manifest(self.path)
                self._check_same(manifest)
                extend(
                    self.path,
                    manifest,
                    documents,
                    Means(workers=1),
                    live=True,
                    bound=self._options.bound,
                )
            written = {id(document) for document in documents}
            with self._changed:
                self._tail = deque(
                    document for document in self._tail if id(document) not in written
                )
                self._oldest, self._tail_shard = time.monotonic(), ()
                self._unsorted = bool(self._tail or self._running)
                self._writes += 1
                self._manifest_at = 0, 0, 0
                self.refresh()

    def _sort_soon(self) -> None:
        """Wake the thread, after starting it where there is none."""
        self._unsorted = True
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"paceline datastore {self.path.name}", daemon=True
            )
            self._thread.start()
            atexit.register(self._close_at_exit)
        self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closing:
            raise DatastoreError(
                f"store {str(self.path)!r}: got an output and is closed; expected it while open."
                " Open it again."
            )

    def _check_same(self, manifest: Manifest) -> None:
        if (manifest.vocab_size, manifest.tokenizer) != (self.vocab_size, self.tokenizer):
            raise DatastoreError(
                f"store {str(self.path)!r}: got one of another vocabulary or tokenizer, as it was"
                " replaced; expected the one that was opened. Open it again."
            )

    def _shorten(self) -> None:
        """Drop the oldest outputs of a tail that could not be put on disk for long."""
        tokens = sum(document.size for document in self._tail)
        while tokens > 4 * self._options.tail and len(self._tail) > 1:
            tokens -= self._tail.popleft().size

    def _publish(self) -> None:
        self.snapshot = Snapshot(self.path, self._shards + self._tail_shard)
