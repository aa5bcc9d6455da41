"""Building a store, adding to it, and keeping the number of its shards small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.gathering import Document, Gathering, checked
from paceline.datastore.layout import (
    LOCK,
    MANIFEST,
    MOST_TEXT,
    MOST_VOCAB,
    Manifest,
    ShardInfo,
    place_of,
    read_manifest,
    write_manifest,
)
from paceline.datastore.lock import writing
from paceline.datastore.shard import read_text, write_shard
from paceline.datastore.store import check_tokenizer
from paceline.errors import ConfigError, DatastoreError
from paceline.util.config import require_count, require_range
from paceline.util.machine import usable_cores

MEMORY = 2 << 30  # bytes
_BYTES_PER_TOKEN = (
    12  # of a shard while it is sorted: text and array 4 each, keys and spare room the rest
)
_LEAST_SHARD = 1 << 10
_RATIO = 4  # a shard is merged with the next smaller ones unless it is this many times their size

# "read", "sort" or "merge"; tokens done; tokens in all if known
Progress = Callable[[str, int, int | None], None]


def _silent(what: str, done: int, total: int | None) -> None:
    return


@dataclass(frozen=True, slots=True)
class Means:
    """What a writer may use.

    Attributes:
        shard_tokens: most tokens and separators of a shard; 0 = as many as `memory` allows. Fewer
            shards search faster.
        memory: bytes for a shard while it is sorted.
        workers: threads that sort; 0 = one for each core. Sorting holds no interpreter lock, so
            threads do.
        progress: called with what is done.
    """

    shard_tokens: int = 0
    memory: int = MEMORY
    workers: int = 0
    progress: Progress = _silent

    def __post_init__(self) -> None:
        if self.shard_tokens and not _LEAST_SHARD <= self.shard_tokens <= MOST_TEXT:
            raise ConfigError(
                f"store: got shard_tokens={self.shard_tokens}; expected {_LEAST_SHARD} to"
                f" {MOST_TEXT}, or 0."
            )
        if self.memory < _LEAST_SHARD * _BYTES_PER_TOKEN or self.workers < 0:
            raise ConfigError(
                f"store: got memory={self.memory}, workers={self.workers}; expected at least"
                f" {_LEAST_SHARD * _BYTES_PER_TOKEN} bytes and 0 workers."
            )

    @property
    def most(self) -> int:
        """Return the most tokens and separators of a shard."""
        return self.shard_tokens or min(MOST_TEXT, self.memory // _BYTES_PER_TOKEN)

    @property
    def threads(self) -> int:
        """Return the number of threads that sort."""
        return self.workers or usable_cores()


def build(
    path: str | Path,
    documents: Iterable[Document],
    vocab_size: int,
    *,
    tokenizer: Any = None,
    shard_tokens: int = 0,
    memory: int = MEMORY,
    workers: int = 0,
    progress: Progress = _silent,
) -> None:
    """Build a store of `documents`; one that is there is replaced when the new one is complete, and
    stays if that fails.

    Args:
        path: a folder, made if need be; it must be a store or empty.
        documents: sequences of token ids, each below `vocab_size` (up to 2^32). Empty ones are left
            out.
        tokenizer: the one the ids come from (or its fingerprint), so that another is refused later.
        shard_tokens, memory, workers, progress: see `Means`.
    Raises:
        DatastoreError: no document, an id beyond the vocabulary, a full disk, another writer, a
            folder of something else.
        ConfigError: an argument out of range.
    """
    means = Means(shard_tokens, memory, workers, progress)
    require_count("store", "vocab_size", vocab_size, 1)
    require_range("store", "vocab_size", vocab_size, 1, MOST_VOCAB)
    path = place_of(path, written=True)
    _require_documents(documents)
    manifest = Manifest(vocab_size, fingerprint_of(tokenizer))
    _make_folder(path)
    with writing(path, "build"), cleaned(path):
        shards = _write_all(path, documents, manifest, means, live=False)
        write_manifest(path, replace(manifest, shards=tuple(shards)))


def add(
    path: str | Path,
    documents: Iterable[Document],
    *,
    tokenizer: Any = None,
    shard_tokens: int = 0,
    memory: int = MEMORY,
    workers: int = 0,
    progress: Progress = _silent,
) -> None:
    """Add `documents` to a store; who reads it keeps what it has until it refreshes.

    Args:
        tokenizer: the one the ids come from; it must be the store's.
        documents, shard_tokens, memory, workers, progress: those of `build`.
    Raises:
        DatastoreError: no store, no document, an id beyond the vocabulary, a full disk, another
            writer, another tokenizer.
    """
    means = Means(shard_tokens, memory, workers, progress)
    path = place_of(path, written=True)
    _require_documents(documents)
    read_manifest(path)
    with writing(path, "add"):
        manifest = read_manifest(path)
        check_tokenizer(path, manifest.tokenizer, tokenizer)
        with cleaned(path):
            extend(path, manifest, documents, means, live=False)


def _require_documents(documents: object) -> None:
    if not isinstance(documents, Iterable) or isinstance(documents, str | bytes):
        raise ConfigError(
            f"store: documents: got {str(documents)[:60]!r}; expected an iterable of sequences of"
            " token ids."
        )


def extend(
    path: Path,
    manifest: Manifest,
    documents: Iterable[Document],
    means: Means,
    *,
    live: bool,
    bound: int = 0,
) -> None:
    """Commit `manifest` with `documents` added, small shards merged; the caller is the writer.

    Args:
        bound: most tokens of the live shards, 0 = any; the oldest are dropped.
    """
    new = _write_all(path, documents, manifest, means, live=live)
    other = [shard for shard in manifest.shards if shard.live != live]
    same = [shard for shard in manifest.shards if shard.live == live] + new
    if live and bound:
        means = replace(means, shard_tokens=max(_LEAST_SHARD, min(means.most, bound // 4)))
        while len(same) > 1 and sum(shard.tokens for shard in same) > bound:
            del same[0]
    same = _merge(path, same, manifest, means)
    shards = other + same if live else same + other
    write_manifest(path, replace(manifest, shards=tuple(shards)))


def _write_all(
    path: Path, documents: Iterable[Document], manifest: Manifest, means: Means, *, live: bool
) -> list[ShardInfo]:
    """Write shards of `documents`, each as large as `means` allows."""
    shards: list[ShardInfo] = []
    gathering = Gathering(manifest.vocab_size, manifest.width)
    before = 0
    for index, document in enumerate(documents):
        ids = checked(document, index, manifest.vocab_size)
        while ids.size:
            piece = ids[: max(1, means.most - len(gathering) - 1)]
            if (
                len(gathering)
                and piece.size < ids.size
                and len(gathering) + ids.size + 1 > means.most >= ids.size + 1
            ):
                piece = ids[:0]  # it fits the next shard whole
            if piece.size:
                gathering.add(piece)
                ids = ids[piece.size :]
                means.progress("read", before + gathering.tokens, None)
            if ids.size or len(gathering) + 1 >= means.most:
                before += gathering.tokens
                shards.append(_write(path, gathering, manifest, means, "sort", live))
    if gathering.documents:
        shards.append(_write(path, gathering, manifest, means, "sort", live))
    if not shards:
        raise DatastoreError(
            f"store {str(path)!r}: got no document with a token; expected at least one. Look at"
            " the inputs."
        )
    return shards


def _write(
    path: Path, gathering: Gathering, manifest: Manifest, means: Means, what: str, live: bool
) -> ShardInfo:
    """Write what was gathered as a shard, and begin the next."""
    info = ShardInfo("", gathering.tokens, gathering.documents, gathering.separator, "", live)
    text, sorted_tokens = gathering.text(), 0

    def done(suffixes: int) -> None:
        nonlocal sorted_tokens
        sorted_tokens += suffixes
        means.progress(what, sorted_tokens, info.tokens)

    try:
        written = write_shard(
            path, text, info, manifest.vocab_size, manifest.width, means.threads, done
        )
    except OSError as error:
        raise DatastoreError(
            f"store {str(path)!r}: got {error} when writing a shard of {info.tokens} tokens;"
            f" expected room for about {4 + manifest.width} bytes a token. The store is as it was:"
            " make room, or choose another place."
        ) from error
    gathering.clear()
    return written


def _merge(
    path: Path, shards: Sequence[ShardInfo], manifest: Manifest, means: Means
) -> list[ShardInfo]:
    """Return the shards, oldest first, with the newest ones merged until each is at least _RATIO
    times the next.

    So their number grows with the logarithm of their tokens, and a token is sorted again about that
    often.
    """
    kept = list(shards)
    while len(kept) > 1:
        sizes = [shard.tokens + shard.documents for shard in kept]
        start, size = len(kept) - 1, sizes[-1]
        while start and sizes[start - 1] < _RATIO * size and sizes[start - 1] + size <= means.most:
            start -= 1
            size += sizes[start]
        if start == len(kept) - 1:
            break
        gathering = Gathering(manifest.vocab_size, manifest.width)
        for info in kept[start:]:
            text = read_text(path, info, manifest.vocab_size, manifest.width)
            gathering.add_text(text, info.documents, info.separator)
        kept[start:] = [_write(path, gathering, manifest, means, "merge", kept[start].live)]
    return kept


def _make_folder(path: Path) -> None:
    """Make the folder of a new store, or see that what is there is ours.

    Raises:
        DatastoreError: it holds something else.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        strange = sorted(entry.name for entry in path.iterdir() if not _ours(entry.name))
    except OSError as error:
        raise DatastoreError(
            f"store {str(path)!r}: got {error}; expected a folder that can be made. Choose another"
            " place."
        ) from error
    if strange:
        raise DatastoreError(
            f"store {str(path)!r}: got a folder that holds {strange[0]!r}; expected a store, or one"
            " that is empty or not there yet. Name another."
        )


def _ours(name: str) -> bool:
    return (
        name == LOCK
        or name.startswith(MANIFEST)
        or (name.startswith("shard-") and name.endswith(".bin"))
    )


@contextmanager
def cleaned(path: Path) -> Iterator[None]:
    """Remove what no manifest names before and after a writer's work, the left-overs of a killed
    one among it.
    """
    try:
        _remove_unnamed(path)
        yield
    finally:
        _remove_unnamed(path)


def _remove_unnamed(path: Path) -> None:
    try:
        named = {shard.name for shard in read_manifest(path).shards}
    except DatastoreError:
        if (path / MANIFEST).exists():
            return  # damaged: its shards stay until a build has replaced it
        named = set()
    for entry in path.iterdir():
        if _ours(entry.name) and entry.name not in {LOCK, MANIFEST} and entry.name not in named:
            entry.unlink(missing_ok=True)
