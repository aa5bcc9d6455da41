"""What a store is on disk: `manifest.json`, the commit point, and the immutable shards it names.

A shard is one file of 4 KiB pages: a header page (JSON), the text (token ids with a separator after
each document, uint16 where the vocabulary fits and uint32 elsewhere), the suffix array (int32), the
pivots (uint64), and the XXH64 of each of those pages (uint64). The manifest holds the checksum of
that last part, and its own. Numbers have the byte order of the machine, which the header names.
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
from paceline.errors import ConfigError, DatastoreError
from paceline.util.files import digest_of, parse_json, write_atomically

MANIFEST = "manifest.json"
LOCK = "writer.lock"
VERSION = 1
MOST_VOCAB = 2**32
MOST_TEXT = 2**31 - 1  # tokens and separators of a shard: positions are int32
_FORMAT = "paceline datastore"
_EMBEDDED_PLACE = Path(__file__).parent.parent / "demo" / "store"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard as its manifest names it.

    Attributes:
        tokens, documents: of its text; each document has a separator besides.
        separator: a value that is no token of this shard.
        sums: XXH64 of its table of checksums, in hexadecimal.
        live: came from `Datastore.append`; such shards are dropped, oldest first, when they grow
            beyond their bound.
    """

    name: str
    tokens: int
    documents: int
    separator: int
    sums: str
    live: bool


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Where the parts of a shard begin, in bytes, and how long they are."""

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
    """The content of a store.

    Attributes:
        tokenizer: fingerprint; None = not known.
        shards: those built, largest first as a rule, then the live ones from the oldest to the
            newest.
    """

    vocab_size: int
    tokenizer: str | None
    shards: tuple[ShardInfo, ...] = ()

    @property
    def width(self) -> int:
        """Return the bytes of a token on disk; the largest uint16 is kept for the separator."""
        return 2 if self.vocab_size <= 65535 else 4


def place_of(path: str | Path, *, written: bool = False) -> Path:
    """Return the folder of a store; the text "demo" names the embedded one, "./demo" a folder of
    that name.

    Raises:
        ConfigError: no name of a folder, or the embedded one is to be `written`.
    """
    if not isinstance(path, str | Path) or path == "":
        raise ConfigError(
            f"store: got {path!r}; expected the name of a folder. Write '.' for the present one."
        )
    if path != demo.NAME:
        return Path(path)
    if written:
        raise ConfigError(
            f"store {path!r}: expected a folder to write; got the embedded one, which stays as it"
            f" is. Write ./{path} for a folder of that name."
        )
    return _EMBEDDED_PLACE


def padded(size: int) -> int:
    """Round `size` bytes up to whole pages."""
    return -(-size // PAGE) * PAGE


def header(shard: ShardInfo, vocab_size: int) -> bytes:
    """Return the first page of a shard."""
    content = {"format": f"{_FORMAT} shard", "version": VERSION, "byteorder": sys.byteorder}
    counts = {
        "vocab_size": vocab_size,
        "tokens": shard.tokens,
        "documents": shard.documents,
        "separator": shard.separator,
    }
    return json.dumps({**content, **counts}).encode().ljust(PAGE)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Commit `manifest`: from now on the store is what it says.

    Raises:
        DatastoreError: it cannot be written; the store stays what it was.
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
            f"store {str(path)!r}: got {error}; expected to write its {MANIFEST}. The store is as"
            " it was: make room, or choose another place."
        ) from error


def version_of(path: Path) -> tuple[int, int, int]:
    """Return what changes with every commit to the store at `path`; zeros where there is no
    manifest.
    """
    try:
        found = os.stat(path / MANIFEST)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_manifest(path: Path) -> Manifest:
    """Return what the store at `path` holds.

    Raises:
        DatastoreError: there is none, or it is damaged or of another version.
    """
    try:
        content = parse_json((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DatastoreError(
            f"store {str(path)!r}: got a place where there is no store; expected the folder of one."
            f" Build one: paceline datastore build {shlex.quote(str(path))} ..."
        ) from None
    except OSError as error:
        raise DatastoreError(
            f"store {str(path)!r}: got {error}; expected a store that can be read. Check its"
            " rights."
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
    if not sound or not 0 < manifest.vocab_size <= MOST_VOCAB or not all(map(_possible, shards)):
        raise DatastoreError(_damaged(path))
    return manifest


def _possible(shard: ShardInfo) -> bool:
    counts = 0 < shard.documents <= shard.tokens and shard.tokens + shard.documents <= MOST_TEXT
    return counts and 0 <= shard.separator < MOST_VOCAB and shard.name == Path(shard.name).name


def _checked(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return the dataclass `kind` with `values`, whose types are looked at."""
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
        f"store {str(path)!r}: got one whose {MANIFEST} is damaged or is no manifest; expected a"
        " sound one. Build the store again from its documents."
    )
