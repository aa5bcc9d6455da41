"""Build a store, add documents to it, and merge its small shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.folder import cleaned, make_folder
from paceline.datastore.gathering import Document, Gathering, checked
from paceline.datastore.layout import (
    Manifest,
    ShardInfo,
    read_manifest,
    store_folder,
    write_manifest,
)
from paceline.datastore.lock import writing
from paceline.datastore.options import BuildOptions, Progress, no_progress
from paceline.datastore.shard import read_text, write_shard
from paceline.datastore.store import check_tokenizer
from paceline.datastore.store_settings import (
    DROP_SHARE,
    MAX_VOCAB_SIZE,
    MERGE_RATIO,
    MIN_SHARD_TOKENS,
    SORT_MEMORY,
)
from paceline.errors import ConfigError, DatastoreError
from paceline.util.config import require_count, require_range


def build(
    path: str | Path,
    documents: Iterable[Document],
    vocab_size: int,
    *,
    tokenizer: Any = None,
    shard_tokens: int = 0,
    memory: int = SORT_MEMORY,
    workers: int = 0,
    progress: Progress = no_progress,
) -> None:
    """Build a store; once complete, the new store replaces any existing store.

    Args:
        path: Folder of the store, which is created if needed. An existing folder must be empty or
            contain a store.
        documents: Token ids of each document, below `vocab_size`. Empty documents are skipped.
        vocab_size: Vocabulary size, from 1 to 2^32.
        tokenizer: Tokenizer that produced the ids, or its fingerprint. If given, the store will
            reject other tokenizers.
        shard_tokens: Maximum number of tokens and separators in a shard; at least 1024. Searches
            are faster with fewer, larger shards. Default 0: as many as `memory` allows.
        memory: Memory for sorting one shard, in bytes; default 2 GiB.
        workers: Number of sorting threads. Default 0: one per core.
        progress: Function called with the phase ("read", "sort" or "merge"), the number of tokens
            processed, and the total or None.
    Raises:
        DatastoreError: There is no document, an id is out of range, the disk is full, another
            writer has locked the store, or the folder contains unrelated files. In all these cases,
            an existing store does not change.
        ConfigError: An argument is out of range.
    """
    options = BuildOptions(shard_tokens, memory, workers, progress)
    require_count("store", "vocab_size", vocab_size, 1)
    require_range("store", "vocab_size", vocab_size, 1, MAX_VOCAB_SIZE)
    path = store_folder(path, written=True)
    _require_documents(documents)
    manifest = Manifest(vocab_size, fingerprint_of(tokenizer))
    rest = iter(documents)
    documents = chain(list(islice(rest, 1)), rest)  # an input without valid records fails here
    make_folder(path)
    with writing(path, "build"), cleaned(path):
        shards = _Writer(path, manifest, options, live=False).write(documents)
        write_manifest(path, replace(manifest, shards=tuple(shards)))


def add(
    path: str | Path,
    documents: Iterable[Document],
    *,
    tokenizer: Any = None,
    shard_tokens: int = 0,
    memory: int = SORT_MEMORY,
    workers: int = 0,
    progress: Progress = no_progress,
) -> None:
    """Add documents to a store; open stores find them after a refresh.

    Args:
        path: Folder of the store.
        documents: Token ids of each document, below the store's vocabulary size.
        tokenizer: Tokenizer that produced the ids, or its fingerprint; must match the store's
            tokenizer.
        shard_tokens: Maximum number of tokens and separators in a shard; at least 1024. Default 0:
            as many as `memory` allows.
        memory: Memory for sorting one shard, in bytes; default 2 GiB.
        workers: Number of sorting threads. Default 0: one per core.
        progress: Function called with the phase ("read", "sort" or "merge"), the number of tokens
            processed, and the total or None.
    Raises:
        DatastoreError: The store does not exist, there are no documents, an id is out of range, the
            disk is full, another writer has locked the store, or the tokenizer differs.
        ConfigError: An argument is out of range.
    """
    options = BuildOptions(shard_tokens, memory, workers, progress)
    path = store_folder(path, written=True)
    _require_documents(documents)
    read_manifest(path)
    with writing(path, "add"):
        manifest = read_manifest(path)
        check_tokenizer(path, manifest.tokenizer, tokenizer)
        with cleaned(path):
            add_shards(path, manifest, documents, options)


def _require_documents(documents: object) -> None:
    if not isinstance(documents, Iterable) or isinstance(documents, str | bytes):
        raise ConfigError(
            f"store: documents: got {str(documents)[:60]!r}; expected an iterable of sequences of"
            " token ids."
        )


def add_shards(
    path: Path, manifest: Manifest, documents: Iterable[Document], options: BuildOptions
) -> None:
    """Add documents, merge small shards, and commit the updated `manifest`.

    The caller must hold the writer's lock.
    """
    writer = _Writer(path, manifest, options, live=False)
    new = writer.write(documents)
    built = [shard for shard in manifest.shards if not shard.live] + new
    shards = writer.merged(built) + [shard for shard in manifest.shards if shard.live]
    write_manifest(path, replace(manifest, shards=tuple(shards)))


def append_outputs(
    path: Path, manifest: Manifest, outputs: Iterable[Document], max_tokens: int
) -> None:
    """Append outputs, and commit the updated `manifest`.

    The oldest outputs are dropped if the total exceeds `max_tokens`. The caller must hold the
    writer's lock.
    """
    options = BuildOptions(workers=1)
    writer = _Writer(path, manifest, options, live=True)
    appended = [shard for shard in manifest.shards if shard.live] + writer.write(outputs)
    while len(appended) > 1 and sum(shard.tokens for shard in appended) > max_tokens:
        del appended[0]
    shard_tokens = max(MIN_SHARD_TOKENS, min(options.max_text_size, max_tokens // DROP_SHARE))
    writer = _Writer(path, manifest, replace(options, shard_tokens=shard_tokens), live=True)
    shards = [shard for shard in manifest.shards if not shard.live] + writer.merged(appended)
    write_manifest(path, replace(manifest, shards=tuple(shards)))


class _Writer:
    """Writes new shards of a store; the caller commits them with a manifest.

    Args:
        path: Folder of the store.
        manifest: Manifest of the store, which specifies the vocabulary size and the token width.
        options: Size of the shards, and memory and threads for sorting.
        live: Whether the shards contain outputs from `Datastore.append`.
    """

    def __init__(self, path: Path, manifest: Manifest, options: BuildOptions, live: bool) -> None:
        self._path, self._manifest, self._options, self._live = path, manifest, options, live
        self._gathering = Gathering(manifest.vocab_size, manifest.width)

    def write(self, documents: Iterable[Document]) -> list[ShardInfo]:
        """Write documents to shards, each as large as the options allow.

        Raises:
            DatastoreError: There are no tokens, an id is out of range, or a shard cannot be
                written.
        """
        shards: list[ShardInfo] = []
        gathering, max_size = self._gathering, self._options.max_text_size
        num_written = 0
        for index, document in enumerate(documents):
            ids = checked(document, index, self._manifest.vocab_size)
            while ids.size:
                part = ids[: self._room_for(ids.size)]
                if part.size:
                    gathering.add(part)
                    ids = ids[part.size :]
                    self._options.progress("read", num_written + gathering.tokens, None)
                if ids.size or len(gathering) + 1 >= max_size:
                    num_written += gathering.tokens
                    shards.append(self._write_shard("sort"))
        if gathering.documents:
            shards.append(self._write_shard("sort"))
        if not shards:
            raise DatastoreError(
                f"the inputs for the store {str(self._path)!r} contain no tokens. Check the inputs."
            )
        return shards

    def _room_for(self, size: int) -> int:
        """Return how many tokens of a document with `size` tokens fit into the shard.

        A document is cut only if it would not even fit into an empty shard.
        """
        max_size, used = self._options.max_text_size, len(self._gathering)
        if used and used + size + 1 > max_size >= size + 1:
            return 0
        return max(1, max_size - used - 1)

    def merged(self, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
        """Merge the newest of the given shards, and return the resulting shards.

        The last shard is merged with the shards before it while these are less than MERGE_RATIO
        times as large, unless the merged shard would be too large. Afterwards, each shard is at
        least MERGE_RATIO times as large as the next one, except for such large shards.

        The number of shards therefore grows logarithmically with the number of tokens. The same
        applies to the number of times that each token is sorted.

        Args:
            shards: Shards to merge, oldest first.
        """
        result = list(shards)
        while len(result) > 1:
            sizes = [shard.tokens + shard.documents for shard in result]
            start, size = len(result) - 1, sizes[-1]
            while (
                start
                and sizes[start - 1] < MERGE_RATIO * size
                and sizes[start - 1] + size <= self._options.max_text_size
            ):
                start -= 1
                size += sizes[start]
            if start == len(result) - 1:
                break
            for info in result[start:]:
                text = read_text(self._path, info, self._manifest.vocab_size, self._manifest.width)
                self._gathering.add_text(text, info.documents, info.separator)
            result[start:] = [self._write_shard("merge")]
        return result

    def _write_shard(self, phase: str) -> ShardInfo:
        """Write the collected documents as a shard, and start the next one."""
        gathering, manifest = self._gathering, self._manifest
        info = ShardInfo(
            "", gathering.tokens, gathering.documents, gathering.separator, "", self._live
        )
        text, num_sorted = gathering.text(), 0

        def done(suffixes: int) -> None:
            nonlocal num_sorted
            num_sorted += suffixes
            self._options.progress(phase, num_sorted, info.tokens)

        try:
            written = write_shard(
                self._path,
                text,
                info,
                manifest.vocab_size,
                manifest.width,
                self._options.num_threads,
                done,
            )
        except OSError as error:
            raise DatastoreError(
                f"a shard of {info.tokens} tokens cannot be written to the store"
                f" {str(self._path)!r}: {error}. It needs about {4 + manifest.width} bytes per"
                " token. The store is unchanged. Free some disk space, or choose another folder."
            ) from error
        gathering.clear()
        return written
