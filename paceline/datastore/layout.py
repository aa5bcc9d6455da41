"""Define the files of a store: a manifest, and immutable shards that it lists.

A writer commits a change by replacing `manifest.json`. A shard is one file, divided into pages of 4
KiB, with five parts:

- The header, one page of JSON.
- The text: token ids with a separator after each document. The ids are uint16 if the vocabulary is
  small enough, otherwise uint32.
- The suffix array (int32).
- The pivots (uint64): the first tokens of every 64th suffix, packed into one number per suffix.
- The XXH64 checksum of each page in the parts above (uint64).

The manifest contains a checksum of each shard's last part, and a checksum of the manifest itself.
Numbers in a shard are in the byte order of the machine that wrote the shard; the header states
this order.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from paceline import demo
from paceline.datastore.hashing import PAGE
from paceline.datastore.rows import SUFFIXES_PER_PIVOT
from paceline.datastore.store_settings import MAX_TEXT_SIZE, MAX_VOCAB_SIZE
from paceline.errors import ConfigError, DatastoreError
from paceline.util.files import digest_of, parse_json, write_atomically

MANIFEST = "manifest.json"
LOCK = "writer.lock"
VERSION = 1
_FORMAT = "paceline datastore"
_EMBEDDED_FOLDER = Path(__file__).parent.parent / "demo" / "store"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard's entry in the manifest.

    Attributes:
        name: File name.
        tokens: Number of tokens without separators.
        documents: Number of documents, which equals the number of separators.
        separator: Value that follows each document in the text. No token of the shard has this
            value.
        sums: XXH64 checksum of the shard's table of page checksums, in hexadecimal.
        live: Whether `Datastore.append` wrote the shard. When all such shards together exceed
            `UpdateOptions.max_tokens` tokens, the oldest of them are dropped.
    """

    name: str
    tokens: int
    documents: int
    separator: int
    sums: str
    live: bool


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The offsets of a shard's parts, and its size, in bytes."""

    text: int
    array: int
    pivots: int
    sums: int
    size: int

    @classmethod
    def of(cls, shard: ShardInfo, width: int) -> ShardLayout:
        """Return the layout of a shard with tokens of `width` bytes."""
        text = PAGE
        array = text + padded((shard.tokens + shard.documents) * width)
        pivots = array + padded(shard.tokens * 4)
        sums = pivots + padded(-(-shard.tokens // SUFFIXES_PER_PIVOT) * 8)
        return cls(text, array, pivots, sums, sums + padded(sums // PAGE * 8))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a store, which lists the store's shards.

    Attributes:
        vocab_size: Vocabulary size; all token ids are smaller.
        tokenizer: Fingerprint of the tokenizer; None if it is unknown.
        shards: Shards written by `build` and `add`, usually largest first, followed by those
            written by `Datastore.append`, oldest first.
    """

    vocab_size: int
    tokenizer: str | None
    shards: tuple[ShardInfo, ...] = ()

    @property
    def width(self) -> int:
        """Bytes per token on disk; the largest uint16 is reserved for the separator."""
        return 2 if self.vocab_size <= 65535 else 4


def store_folder(path: str | Path, *, written: bool = False) -> Path:
    """Return the folder of a store.

    Args:
        path: Folder of the store. "demo" is the built-in store; use "./demo" for a folder with
            that name.
        written: Whether the caller wants to write to the store. Default False.
    Raises:
        ConfigError: The path is empty, or the caller wants to write to the built-in store.
    """
    if not isinstance(path, str | Path) or path == "":
        raise ConfigError(
            f"store: got {path!r}; expected the path of a folder. Write '.' for the current one."
        )
    if path != demo.NAME:
        return Path(path)
    if written:
        raise ConfigError(
            f"the store {path!r} is built in and read-only. Write ./{path} for a folder of that"
            " name."
        )
    return _EMBEDDED_FOLDER


def padded(size: int) -> int:
    """Round `size` bytes up to whole pages."""
    return -(-size // PAGE) * PAGE


def header(shard: ShardInfo, vocab_size: int) -> bytes:
    """Return the header of a shard: one page of JSON."""
    content = {"format": f"{_FORMAT} shard", "version": VERSION, "byteorder": sys.byteorder}
    counts = {
        "vocab_size": vocab_size,
        "tokens": shard.tokens,
        "documents": shard.documents,
        "separator": shard.separator,
    }
    return json.dumps({**content, **counts}).encode().ljust(PAGE)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Replace the manifest of a store atomically, committing a change.

    Raises:
        DatastoreError: The manifest cannot be written. The store is then unchanged.
    """
    content: dict[str, Any] = {
        "format": _FORMAT,
        "version": VERSION,
        **dataclasses.asdict(manifest),
    }
    content["sha256"] = digest_of(content)
    try:
        write_atomically(path / MANIFEST, json.dumps(content, indent=1).encode())
    except ConfigError as error:
        raise DatastoreError(
            f"the {MANIFEST} of the store {str(path)!r} cannot be written: {error}. The store is"
            " unchanged. Free some disk space, or choose another folder."
        ) from error


def version_of(path: Path) -> tuple[int, int, int]:
    """Return a value that changes with every commit; zeros if there is no manifest."""
    try:
        status = os.stat(path / MANIFEST)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a store.

    Raises:
        DatastoreError: The store does not exist, or its manifest is damaged or has a different
            version.
    """
    try:
        content = parse_json((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DatastoreError(
            f"there is no store at {str(path)!r}. Build one: paceline datastore build"
            f" {shlex.quote(str(path))} ANSWERS.jsonl --tokenizer MODEL"
        ) from None
    except OSError as error:
        raise DatastoreError(
            f"the store {str(path)!r} cannot be read: {error}. Check its permissions."
        ) from error
    except ValueError as error:
        raise DatastoreError(_damaged(path)) from error
    if (
        not isinstance(content, dict)
        or content.get("format") != _FORMAT
        or "version" not in content
    ):
        raise DatastoreError(_damaged(path))
    if content["version"] != VERSION:
        raise DatastoreError(
            f"store {str(path)!r}: got a {MANIFEST} that has version {content['version']!r};"
            f" expected {VERSION}. Build the store again, or use a newer release."
        )
    try:
        sound = content.pop("sha256", None) == digest_of(content)
        del content["format"], content["version"]
        shards = tuple(_checked(ShardInfo, shard) for shard in content.pop("shards"))
        manifest: Manifest = _checked(Manifest, {**content, "shards": shards})
    except (TypeError, KeyError, ValueError) as error:
        raise DatastoreError(_damaged(path)) from error
    is_possible = 0 < manifest.vocab_size <= MAX_VOCAB_SIZE and all(map(_is_possible, shards))
    if not sound or not is_possible:
        raise DatastoreError(_damaged(path))
    return manifest


def _is_possible(shard: ShardInfo) -> bool:
    counts = 0 < shard.documents <= shard.tokens and shard.tokens + shard.documents <= MAX_TEXT_SIZE
    return counts and 0 <= shard.separator < MAX_VOCAB_SIZE and shard.name == Path(shard.name).name


def _checked(kind: type[Any], values: dict[str, Any]) -> Any:
    """Build the dataclass `kind` from `values`; raise TypeError for wrong types."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if name != "shards" and (
            not isinstance(value, hints[name])
            or (isinstance(value, bool) and hints[name] is not bool)
        ):
            raise TypeError(name)
    return kind(**values)


def _damaged(path: Path) -> str:
    return (
        f"The store {str(path)!r} cannot be used, because its {MANIFEST} is damaged or is not a"
        " manifest. Build the store again from its documents."
    )
