"""Write shards to files, map the files read-only, and find damage in them."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.gathering import Gathering
from paceline.datastore.hashing import PAGE, find_bad_pages, hash_pages, xxh64
from paceline.datastore.layout import ShardInfo, ShardLayout, header
from paceline.datastore.rows import SUFFIXES_PER_PIVOT, ShardRow
from paceline.datastore.store_settings import CONVERTED_TOKENS, HASHED_BYTES, MAX_NAMED_PAGES
from paceline.datastore.suffixes import suffix_array
from paceline.errors import DatastoreError


class DamagedShardError(DatastoreError):
    """Raised if a shard is damaged.

    Attributes:
        what: Description of the damage.
    """

    def __init__(self, path: Path, name: str, what: str) -> None:
        super().__init__(
            f"The shard {name!r} of the store {str(path)!r} is damaged: {what}. Build the store"
            f" again; `paceline datastore verify {path}` lists all damage."
        )
        self.what = what


class Shard:
    """The text of a set of documents, with the suffix array of the text.

    Args:
        info: Entry of the shard in the manifest.
        row: Record with the addresses and sizes of the shard's arrays, for compiled code.
        arrays: Arrays to which the addresses point. The shard keeps these arrays alive.
    """

    def __init__(
        self, info: ShardInfo, row: ShardRow, arrays: tuple[NDArray[np.generic], ...]
    ) -> None:
        self.info, self.row = info, row
        self._arrays = arrays

    @classmethod
    def mapped(cls, path: Path, info: ShardInfo, vocab_size: int, width: int) -> Shard:
        """Map a shard of a store into memory.

        The size, the header and the table of checksums are checked immediately. Each page is
        checked when it is first used.

        Args:
            path: Folder of the store.
            info: Entry of the shard in the manifest.
            vocab_size: Vocabulary size of the store.
            width: Number of bytes per token in the store.
        Raises:
            DatastoreError: The shard is damaged.
            FileNotFoundError: The shard's file does not exist.
        """
        layout = ShardLayout.of(info, width)
        pages = _map(path / info.name, layout.size)
        base = pages.ctypes.data
        if pages[:PAGE].tobytes() != header(info, vocab_size):
            raise DamagedShardError(path, info.name, "its header differs from the manifest")
        if f"{xxh64(base + layout.sums, layout.size - layout.sums):016x}" != info.sums:
            raise DamagedShardError(path, info.name, "its table of checksums is damaged")
        seen = np.zeros(layout.sums // PAGE, dtype=np.uint8)
        row = ShardRow(
            pages=base,
            seen=seen.ctypes.data,
            checksums=base + layout.sums,
            text=base + layout.text,
            text_size=info.tokens + info.documents,
            token_bytes=width,
            suffix_array=base + layout.array,
            suffix_count=info.tokens,
            pivots=base + layout.pivots,
            separator=info.separator,
            vocab_size=vocab_size,
        )
        return cls(info, row, (pages, seen))

    @classmethod
    def in_memory(
        cls, documents: Iterable[NDArray[np.uint32]], vocab_size: int, width: int
    ) -> Shard:
        """Create a shard in memory, without a file.

        Args:
            documents: Token ids of each document [n], below `vocab_size`.
            vocab_size: Vocabulary size of the store.
            width: Number of bytes per token in the store.
        """
        gathering = Gathering(vocab_size, width)
        for document in documents:
            gathering.add(document)
        text, separator = gathering.text(), gathering.separator
        array = suffix_array(text, separator)
        pivots = _pivots(text, array, 4)
        info = ShardInfo("", gathering.tokens, gathering.documents, separator, "", live=True)
        row = ShardRow(
            pages=0,
            seen=0,
            checksums=0,
            text=text.ctypes.data,
            text_size=text.size,
            token_bytes=4,
            suffix_array=array.ctypes.data,
            suffix_count=info.tokens,
            pivots=pivots.ctypes.data,
            separator=separator,
            vocab_size=vocab_size,
        )
        return cls(info, row, (text, array, pivots))


def write_shard(
    path: Path,
    text: NDArray[np.uint32],
    info: ShardInfo,
    vocab_size: int,
    width: int,
    workers: int,
    done: Callable[[int], None] = lambda suffixes: None,
) -> ShardInfo:
    """Write a text and its suffix array as a new shard, after sorting the suffixes.

    The caller must add the shard to the manifest of the store.

    Args:
        path: Folder of the store.
        text: Documents, each followed by a separator, [tokens + documents].
        info: Entry of the shard for the manifest, without `name` and `sums`.
        vocab_size: Vocabulary size of the store.
        width: Number of bytes per token in the store.
        workers: Number of sorting threads.
        done: Function that is called after each part of the suffixes has been sorted, with the
            number of suffixes in that part.
    Returns:
        The entry of the shard for the manifest, including `name` and `sums`.
    Raises:
        OSError: The shard cannot be written; its file is removed.
    """
    array = suffix_array(text, info.separator, workers, done)
    info = replace(info, name=f"shard-{secrets.token_hex(8)}.bin")
    layout = ShardLayout.of(info, width)
    target = path / info.name
    try:
        with target.open("xb") as file:
            file.write(header(info, vocab_size))
            for start in range(0, text.size, CONVERTED_TOKENS):
                file.write(text[start : start + CONVERTED_TOKENS].astype(f"u{width}").data)
            for part, offset in (
                (array, layout.array),
                (_pivots(text, array, width), layout.pivots),
            ):
                file.seek(offset)
                file.write(part.data)
            file.truncate(layout.sums)
            file.flush()
            sums = _page_sums(target, layout)
            file.seek(layout.sums)
            file.write(sums.data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return replace(info, sums=f"{xxh64(sums.ctypes.data, sums.nbytes):016x}")


def _page_sums(path: Path, layout: ShardLayout) -> NDArray[np.uint64]:
    """Return the table of a shard's page checksums; the table fills whole pages."""
    sums = np.zeros((layout.size - layout.sums) // 8, dtype=np.uint64)
    for start in range(0, layout.sums, HASHED_BYTES):
        pages = _map(path, layout.sums, start, min(HASHED_BYTES, layout.sums - start))
        hash_pages(pages.ctypes.data, sums[start // PAGE : (start + pages.size) // PAGE])
    return sums


def read_text(path: Path, info: ShardInfo, vocab_size: int, width: int) -> NDArray[np.uint32]:
    """Return the text of a shard: documents, each followed by a separator.

    Args:
        path: Folder of the store.
        info: Entry of the shard in the manifest.
        vocab_size: Vocabulary size of the store.
        width: Number of bytes per token in the store.
    Raises:
        DatastoreError: The shard is damaged.
    """
    damage = find_damage(path, info, vocab_size, width)
    if damage is not None:
        raise DamagedShardError(path, info.name, damage)
    layout = ShardLayout.of(info, width)
    pages = _map(path / info.name, layout.size)
    size = (info.tokens + info.documents) * width
    return pages[layout.text : layout.text + size].view(f"u{width}").astype(np.uint32)


def find_damage(path: Path, info: ShardInfo, vocab_size: int, width: int) -> str | None:
    """Check every page of a shard; return a description of the damage, or None."""
    try:
        shard_layout = ShardLayout.of(info, width)
        Shard.mapped(path, info, vocab_size, width)
        pages = _map(path / info.name, shard_layout.size)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error}"
    except DamagedShardError as error:
        return error.what
    sums = pages[shard_layout.sums :].view(np.uint64)[: shard_layout.sums // PAGE]
    bad = np.zeros(MAX_NAMED_PAGES, dtype=np.int64)
    num_bad = find_bad_pages(pages.ctypes.data, sums, bad)
    if not num_bad:
        return None
    named = ", ".join(str(page) for page in bad[:num_bad])
    return (
        f"{num_bad} of {sums.size} pages of 4 KiB are damaged:"
        f" {named}{', ...' if num_bad > bad.size else ''}"
    )


def _pivots(text: NDArray[np.uint32], array: NDArray[np.int32], width: int) -> NDArray[np.uint64]:
    """Return the first 8 bytes of every SUFFIXES_PER_PIVOT-th suffix, as numbers.

    The numbers are in suffix order.
    """
    starts = array[::SUFFIXES_PER_PIVOT].astype(np.int64)
    keys = np.zeros(starts.size, dtype=np.uint64)
    for offset in range(8 // width):
        # The text ends with a separator, so clamping positions does not change the order.
        token = text[np.minimum(starts + offset, text.size - 1)]
        keys = (keys << np.uint64(8 * width)) | token.astype(np.uint64)
    return keys


def _map(path: Path, size: int, start: int = 0, length: int = 0) -> NDArray[np.uint8]:
    """Map a file into memory, as a read-only array of bytes.

    The file stays mapped as long as the array exists.

    Args:
        path: File to map.
        size: Expected size of the file, in bytes.
        start: First byte to map; a multiple of the page size; default 0.
        length: Number of bytes to map. Default 0: the whole file.
    Raises:
        DatastoreError: The file has a different size.
        OSError: The file cannot be opened.
    """
    with path.open("rb") as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise DamagedShardError(
                path.parent, path.name, f"it has {actual} bytes instead of {size}"
            )
        return np.frombuffer(
            mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start), dtype=np.uint8
        )
