"""Open a store for searches, and append outputs to it while it is searched.

An appended output is searched in memory at first, and written to disk soon after. Unfinished
outputs stay in memory.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.datastore.folder import cleaned
from paceline.datastore.gathering import Document, checked
from paceline.datastore.layout import Manifest, read_manifest, store_folder, version_of
from paceline.datastore.lock import LockedError, writing
from paceline.datastore.options import UpdateOptions
from paceline.datastore.running import RunningOutputs
from paceline.datastore.shard import Shard
from paceline.datastore.store import Snapshot, check_tokenizer, open_shards
from paceline.datastore.store_settings import LOCK_RETRY_S, PAUSES_PER_SORT, WRITE_RETRY_S
from paceline.datastore.unwritten import UnwrittenOutputs
from paceline.datastore.writer import append_outputs
from paceline.errors import DatastoreError
from paceline.util.threads import follow_forks


def open_store(
    path: str | Path, *, tokenizer: Any = None, updates: UpdateOptions | None = None
) -> Datastore:
    """Open a store for searches and for appending outputs.

    Args:
        path: Folder of the store. The text "demo" names the built-in store, "./demo" a folder of
            that name.
        tokenizer: Tokenizer whose ids are searched, or its fingerprint. A store of another
            tokenizer is refused. Default: any store is accepted.
        updates: Limits for appended outputs; default `UpdateOptions()`.
    Raises:
        DatastoreError: There is no store, or it is damaged or of another tokenizer.
    """
    return Datastore(store_folder(path), tokenizer, updates or UpdateOptions())


class Datastore:
    """Searches a store and appends outputs to it.

    Several threads may share the object. A forked child may use it for the outputs that it appends
    itself. Other processes open the store on their own.

    Attributes:
        path: Folder of the store.
        snapshot: Shards that can be searched now; replaced by updates, never changed.
        vocab_size: Vocabulary size of the store.
        tokenizer: Fingerprint of the store's tokenizer; None if it is unknown.
    """

    def __init__(self, path: Path, tokenizer: Any, options: UpdateOptions) -> None:
        self.path, self._options = path, options
        self._version = version_of(path)
        manifest, self._shards = open_shards(path, {})
        check_tokenizer(path, manifest.tokenizer, tokenizer)
        self.vocab_size, self.tokenizer, self._width = (
            manifest.vocab_size,
            manifest.tokenizer,
            manifest.width,
        )
        self._unwritten = UnwrittenOutputs(options)
        self._running = RunningOutputs(options.max_unwritten_tokens)
        self._unsorted = False  # whether outputs in memory cannot be searched yet
        self._memory_shard: tuple[Shard, ...] = ()  # of the outputs in memory
        self._num_writes = 0  # of unwritten outputs to disk
        self._changed = threading.Condition()  # guards all of these
        self._disk = threading.Lock()  # held while unwritten outputs go to disk
        self._thread: threading.Thread | None = None
        self._closing = False
        self._publish()
        follow_forks(self)

    def __enter__(self) -> Datastore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a tokenizer other than the store's.

        Args:
            tokenizer: Tokenizer whose ids are searched, its fingerprint, or None if unknown.
        Raises:
            DatastoreError: The tokenizers differ; the error shows both fingerprints.
        """
        check_tokenizer(self.path, self.tokenizer, tokenizer)

    def refresh(self) -> bool:
        """Open the shards that other writers have committed; return whether there are any.

        Without a change this takes microseconds.

        Raises:
            DatastoreError: The store is damaged, or was replaced by a store with another vocabulary
                or tokenizer.
        """
        version = version_of(self.path)
        with self._changed:
            if version == self._version:
                return False
            manifest, shards = open_shards(
                self.path, {shard.info.name: shard for shard in self._shards}
            )
            self._check_same(manifest)
            self._version, self._shards = version, shards
            self._publish()
        return True

    def append(self, token_ids: Document) -> None:
        """Add a finished output.

        It can be searched shortly after, and is on disk after `UpdateOptions.max_unwritten_s`.

        Raises:
            DatastoreError: An id is not below the vocabulary size, or the store is closed.
        """
        document = checked(token_ids, 0, self.vocab_size).copy()
        with self._changed:
            self._check_open()
            if document.size:
                self._unwritten.append(document)
                self._sort_soon()

    def follow(self, outputs: Mapping[int, Document]) -> None:
        """Search unfinished outputs if there are two or more; they stay in memory.

        Args:
            outputs: New tokens of each output since the last call, by a number of the caller.
        Raises:
            DatastoreError: An id is not below the vocabulary size, or the store is closed.
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
        """Remove an unfinished output, which has ended or was dropped."""
        with self._changed:
            self._running.drop(output)

    def flush(self) -> None:
        """Write the appended outputs to disk and merge small shards.

        Raises:
            DatastoreError: The store cannot be written, or another writer did not end within
                `UpdateOptions.lock_timeout_s`. The outputs stay in memory.
        """
        deadline = time.monotonic() + self._options.lock_timeout_s
        while True:
            try:
                return self._write()
            except LockedError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(LOCK_RETRY_S)

    def close(self) -> None:
        """Write the appended outputs to disk and end the thread; snapshots stay valid.

        Raises:
            DatastoreError: The outputs cannot be written; see `flush`.
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
        """Start a forked process without thread and outputs, which the parent writes."""
        self._changed, self._disk = threading.Condition(), threading.Lock()
        self._unwritten = UnwrittenOutputs(self._options)
        self._running = RunningOutputs(self._options.max_unwritten_tokens)
        self._unsorted = False
        self._thread = None
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except DatastoreError as error:  # nobody can catch it any more
            warnings.warn(f"outputs were not put on disk and are lost: {error}", stacklevel=2)

    def _work(self) -> None:
        """Run as the thread: sort outputs in memory, then write them to disk."""
        retry_at = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._unsorted,
                    self._unwritten.seconds_until_due(retry_at),
                )
                if self._closing:
                    return
            start = time.monotonic()
            if self._unsorted:
                self._sort()
            # Sorting takes only a small share of the time, however fast outputs come.
            pause = PAUSES_PER_SORT * (time.monotonic() - start)
            with self._changed:
                is_due = self._unwritten.seconds_until_due(retry_at) == 0
            if is_due:
                retry_at = self._try_write()
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)

    def _try_write(self) -> float:
        """Write to disk if that is possible now; return the time of the next attempt."""
        try:
            self._write()
        except LockedError:
            return time.monotonic() + LOCK_RETRY_S
        except DatastoreError as error:
            warnings.warn(
                f"outputs were not put on disk and are kept in memory: {error}", stacklevel=2
            )
            return time.monotonic() + WRITE_RETRY_S
        return 0.0

    def _sort(self) -> None:
        """Sort the outputs in memory into a shard and publish it."""
        with self._changed:
            documents = [*self._unwritten.outputs(), *self._running.documents()]
            num_writes = self._num_writes
            self._unsorted = False
        shard = Shard.in_memory(documents, self.vocab_size, self._width)
        with self._changed:
            # After a write meanwhile, the outputs are on disk. Later outputs are sorted next.
            if num_writes == self._num_writes:
                self._memory_shard = (shard,)
                self._publish()

    def _write(self) -> None:
        """Commit the unwritten outputs as a shard, which replaces the shard in memory."""
        with self._disk:
            with self._changed:
                outputs = self._unwritten.outputs()
            if not outputs:
                return
            with writing(self.path, "append"), cleaned(self.path):
                manifest = read_manifest(self.path)
                self._check_same(manifest)
                append_outputs(self.path, manifest, outputs, self._options.max_tokens)
            with self._changed:
                self._unwritten.remove(outputs)
                self._memory_shard = ()
                self._unsorted = bool(self._unwritten or self._running)
                self._num_writes += 1
                self._version = 0, 0, 0  # so that `refresh` reads the manifest
                self.refresh()

    def _sort_soon(self) -> None:
        """Wake the thread, which is started if there is none."""
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
                f"The store {str(self.path)!r} is closed and takes no outputs. Open it again."
            )

    def _check_same(self, manifest: Manifest) -> None:
        if (manifest.vocab_size, manifest.tokenizer) != (self.vocab_size, self.tokenizer):
            raise DatastoreError(
                f"The store {str(self.path)!r} was replaced by a store with another vocabulary or"
                " tokenizer. Open it again."
            )

    def _publish(self) -> None:
        self.snapshot = Snapshot(self.path, self._shards + self._memory_shard)
