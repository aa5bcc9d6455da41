"""Shards: written whole, mapped read-only, verified."""

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
from paceline.datastore.suffixes import suffix_array
from paceline.errors import DatastoreError

_PIECE = 1 << 22  # tokens converted at a time
_WINDOW = 1 << 26  # bytes mapped at a time where a whole file is read
_MOST_NAMED = 16  # bad pages of a shard that a report names


class DamagedShardError(DatastoreError):
    """A shard that cannot be used; `what` is wrong with it."""

    def __init__(self, path: Path, name: str, what: str) -> None:
        super().__init__(
            f"store {str(path)!r}, shard {name!r}: got damage, {what}; expected the file as it was"
            f" built. `paceline datastore verify {path}` lists all damage; build the store again."
        )
        self.what = what


class Shard:
    """The text of some documents with its suffix array, ready to be searched.

    Attributes:
        info: what the manifest says of it. row: its record in a snapshot's table; it holds
            addresses inside this object.
    """

    def __init__(
        self, info: ShardInfo, row: ShardRow, kept: tuple[NDArray[np.generic], ...]
    ) -> None:
        self.info, self.row = info, row
        self._kept = kept

    @classmethod
    def mapped(cls, path: Path, info: ShardInfo, vocab_size: int, width: int) -> Shard:
        """Open a shard of the store at `path`: size, header and table of checksums are looked at
        now, the rest at its first use.

        Raises:
            DatastoreError: it is damaged. FileNotFoundError: it is gone.
        """
        layout = ShardLayout.of(info, width)
        pages = _map(path / info.name, layout.size)
        base = pages.ctypes.data
        if pages[:PAGE].tobytes() != header(info, vocab_size):
            raise DamagedShardError(path, info.name, "its header is not what the manifest says")
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
        """Make a shard that is in no file.

        Args:
            documents: each [n], of ids below vocab_size. width: bytes of a token in the store it
                belongs to.
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
    """Sort `text` and write it as a new file of the store at `path`; no manifest names it yet.

    Args:
        text: [tokens + documents], a separator after each document.
        info: all but `name` and `sums`, which the result has.
        done: called with the number of suffixes sorted.
    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    array = suffix_array(text, info.separator, workers, done)
    info = replace(info, name=f"shard-{secrets.token_hex(8)}.bin")
    layout = ShardLayout.of(info, width)
    target = path / info.name
    try:
        with target.open("xb") as file:
            file.write(header(info, vocab_size))
            for start in range(0, text.size, _PIECE):
                file.write(text[start : start + _PIECE].astype(f"u{width}").data)
            for part, offset in (
                (array, layout.array),
                (_pivots(text, array, width), layout.pivots),
            ):
                file.seek(offset)
                file.write(part.data)
            file.truncate(layout.sums)
            file.flush()
            sums = np.zeros((layout.size - layout.sums) // 8, dtype=np.uint64)
            for start in range(0, layout.sums, _WINDOW):
                pages = _map(target, layout.sums, start, min(_WINDOW, layout.sums - start))
                hash_pages(pages.ctypes.data, sums[start // PAGE : (start + pages.size) // PAGE])
            file.seek(layout.sums)
            file.write(sums.data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return replace(info, sums=f"{xxh64(sums.ctypes.data, sums.nbytes):016x}")


def read_text(path: Path, info: ShardInfo, vocab_size: int, width: int) -> NDArray[np.uint32]:
    """Return the text of a shard, [tokens + documents], a separator after each document.

    Raises:
        DatastoreError: the shard is damaged.
    """
    found = find_damage(path, info, vocab_size, width)
    if found is not None:
        raise DamagedShardError(path, info.name, found)
    layout = ShardLayout.of(info, width)
    pages = _map(path / info.name, layout.size)
    size = (info.tokens + info.documents) * width
    return pages[layout.text : layout.text + size].view(f"u{width}").astype(np.uint32)


def find_damage(path: Path, info: ShardInfo, vocab_size: int, width: int) -> str | None:
    """Return what is wrong with a shard of the store at `path`, every page looked at; None if
    nothing is.
    """
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
    bad = np.zeros(_MOST_NAMED, dtype=np.int64)
    found = find_bad_pages(pages.ctypes.data, sums, bad)
    if not found:
        return None
    named = ", ".join(str(page) for page in bad[:found])
    return (
        f"{found} of {sums.size} pages of 4 KiB are damaged:"
        f" {named}{', ...' if found > bad.size else ''}"
    )


def _pivots(text: NDArray[np.uint32], array: NDArray[np.int32], width: int) -> NDArray[np.uint64]:
    """Return the first 8 bytes of tokens of every SUFFIXES_PER_PIVOT-th suffix, as numbers that
    sort like them.
    """
    starts = array[::SUFFIXES_PER_PIVOT].astype(np.int64)
    keys = np.zeros(starts.size, dtype=np.uint64)
    for offset in range(8 // width):
        # the text ends with a separator: nothing looks beyond
        token = text[np.minimum(starts + offset, text.size - 1)]
        keys = (keys << np.uint64(8 * width)) | token.astype(np.uint64)
    return keys


def _map(path: Path, size: int, start: int = 0, length: int = 0) -> NDArray[np.uint8]:
    """Map a file of `size` bytes, or `length` of them from `start` on, read-only, as long as the
    array lives.

    Raises:
        DatastoreError: it has another size. OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise DamagedShardError(
                path.parent, path.name, f"it has {found} bytes instead of {size}"
            )
        return np.frombuffer(
            mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start), dtype=np.uint8
        )
