"""Open a datastore for searching, and append outputs to it during searches.

An appended output can first be searched in memory, and is written to disk soon afterwards.
Unfinished outputs stay in memory.
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
from paceline.datastore.layout import read_manifest, store_folder, version_of
from paceline.datastore.lock import LockedError, writing
from paceline.datastore.options import UpdateOptions
from paceline.datastore.running import RunningOutputs
from paceline.datastore.shard import Shard
from paceline.datastore.store import Snapshot, check_same, check_tokenizer, open_shards
from paceline.datastore.store_settings import LOCK_RETRY_S, PAUSES_PER_SORT, WRITE_RETRY_S
from paceline.datastore.unwritten import UnwrittenOutputs
from paceline.datastore.writer import append_outputs
from paceline.errors import DatastoreError
from paceline.util.threads import follow_forks


def open_store(
    path: str | Path, *, tokenizer: Any = None, updates: UpdateOptions | None = None
) -> Datastore:
    """Open a datastore for searches and for appending outputs.

    Args:
        path: Folder of the store. "demo" is the built-in store; use "./demo" for a folder with
            that name.
        tokenizer: Tokenizer of the ids to search for, or the fingerprint of this tokenizer. A store
            built with a different tokenizer is rejected. Default: any store is accepted.
        updates: Limits on appended outputs; default `UpdateOptions()`.
    Raises:
        DatastoreError: The store does not exist, is damaged, or was built with a different
            tokenizer.
    """
    return Datastore(store_folder(path), tokenizer, updates or UpdateOptions())


class Datastore:
    """Searches a datastore, and appends outputs to it.

    Several threads may share this object. A forked child process may also use the object, but
    writes only the outputs that the child appends. Other processes must open the store themselves.

    Attributes:
        path: Folder of the store.
        snapshot: Shards that can currently be searched. Updates replace the snapshot, but never
            modify it.
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
        self._unsorted = False  # whether outputs in memory are unsorted
        self._memory_shard: tuple[Shard, ...] = ()  # holds these outputs
        self._num_writes = 0  # counts writes to disk
        self._changed = threading.Condition()  # guards all attributes above
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
        """Check that the datastore was built with the given tokenizer.

        Args:
            tokenizer: Tokenizer of the searched ids, its fingerprint, or None if unknown.
        Raises:
            DatastoreError: The tokenizers differ; the error shows both fingerprints.
        """
        check_tokenizer(self.path, self.tokenizer, tokenizer)

    def refresh(self) -> bool:
        """Open shards that other writers have committed; return whether there were any.

        If nothing has changed, the call returns within microseconds.

        Raises:
            DatastoreError: The store is damaged, or was replaced by a store with a different
                vocabulary or tokenizer.
        """
        version = version_of(self.path)
        with self._changed:
            if version == self._version:
                return False
            manifest, shards = open_shards(
                self.path, {shard.info.name: shard for shard in self._shards}
            )
            check_same(self.path, manifest, self.vocab_size, self.tokenizer)
            self._version, self._shards = version, shards
            self._publish()
        return True

    def append(self, token_ids: Document) -> None:
        """Add a finished output.

        The output can be searched shortly afterwards, and is on disk after
        `UpdateOptions.max_unwritten_s`.

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
        """Collect unfinished outputs; make them searchable if there are several outputs.

        Args:
            outputs: New tokens of each output since the previous call. The keys are numbers that
                the caller assigns to the outputs.
        Raises:
            DatastoreError: An id is not below the vocabulary size, or the store is closed.
        """
        grown = {
            output: checked(token_ids, 0, self.vocab_size).tolist()
            for output, token_ids in outputs.items()
        }
        with self._changed:
            self._check_open()
            for output, token_ids in grown.items():
                self._running.extend(output, token_ids)
            if grown and self._running:
                self._sort_soon()

    def unfollow(self, output: int) -> None:
        """Remove an output that has ended or been dropped."""
        with self._changed:
            self._running.drop(output)

    def flush(self) -> None:
        """Write the appended outputs to disk, and merge small shards.

        Raises:
            DatastoreError: The store cannot be written, or another writer did not finish within
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
        """Write outputs to disk, and stop the background thread; snapshots stay valid.

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
        """Drop unwritten outputs in a forked child, because the parent writes them."""
        self._changed, self._disk = threading.Condition(), threading.Lock()
        self._unwritten = UnwrittenOutputs(self._options)
        self._running = RunningOutputs(self._options.max_unwritten_tokens)
        self._unsorted = False
        self._thread = None
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except DatastoreError as error:  # no caller can catch the error any more
            warnings.warn(
                f"outputs could not be written to disk and are lost: {error}", stacklevel=2
            )

    def _work(self) -> None:
        """Run the thread's main loop: sort outputs in memory, and write them to disk."""
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
            # Sorting takes only a small share of the time, no matter how fast outputs arrive.
            pause = PAUSES_PER_SORT * (time.monotonic() - start)
            with self._changed:
                is_due = self._unwritten.seconds_until_due(retry_at) == 0
            if is_due:
                retry_at = self._try_write()
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)

    def _try_write(self) -> float:
        """Write outputs to disk if possible, and return the time of the next attempt."""
        try:
            self._write()
        except LockedError:
            return time.monotonic() + LOCK_RETRY_S
        except DatastoreError as error:
            warnings.warn(
                f"outputs could not be written to disk and stay in memory: {error}", stacklevel=2
            )
            return time.monotonic() + WRITE_RETRY_S
        return 0.0

    def _sort(self) -> None:
        """Build a searchable shard in memory from the outputs that are not on disk."""
        with self._changed:
            documents = [*self._unwritten.outputs(), *self._running.documents()]
            num_writes = self._num_writes
            self._unsorted = False
        shard = Shard.in_memory(documents, self.vocab_size, self._width)
        with self._changed:
            # If a write happened meanwhile, the outputs are already on disk. Later outputs are
            # sorted next.
            if num_writes == self._num_writes:
                self._memory_shard = (shard,)
                self._publish()

    def _write(self) -> None:
        """Write the outputs to disk as a shard that replaces the shard in memory."""
        with self._disk:
            with self._changed:
                outputs = self._unwritten.outputs()
            if not outputs:
                return
            with writing(self.path, "append"), cleaned(self.path):
                manifest = read_manifest(self.path)
                check_same(self.path, manifest, self.vocab_size, self.tokenizer)
                append_outputs(self.path, manifest, outputs, self._options.max_tokens)
            with self._changed:
                self._unwritten.remove(outputs)
                self._memory_shard = ()
                self._unsorted = bool(self._unwritten or self._running)
                self._num_writes += 1
                self._version = 0, 0, 0  # so that `refresh` reads the manifest
                self.refresh()

    def _sort_soon(self) -> None:
        """Wake the thread that sorts and writes outputs, starting it if necessary."""
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
                f"the store {str(self.path)!r} is closed and does not accept outputs. Open it"
                " again."
            )

    def _publish(self) -> None:
        self.snapshot = Snapshot(self.path, self._shards + self._memory_shard)
