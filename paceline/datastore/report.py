"""What a store holds, and whether it is sound."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from paceline.datastore.layout import MANIFEST, ShardLayout, place_of, read_manifest
from paceline.datastore.shard import find_damage
from paceline.errors import DatastoreError


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One shard: tokens without separators, size in bytes, whether it came from live appending."""

    name: str
    tokens: int
    documents: int
    size: int
    live: bool


@dataclass(frozen=True, slots=True)
class Info:
    """What a store says of itself.

    Attributes:
        tokenizer: fingerprint; None = not known. dtype: of a token on disk.
    """

    path: Path
    vocab_size: int
    dtype: str
    tokenizer: str | None
    shards: tuple[ShardReport, ...]

    @property
    def tokens(self) -> int:
        """Return the tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        """Return the documents of all shards."""
        return sum(shard.documents for shard in self.shards)

    @property
    def size(self) -> int:
        """Return the bytes of all shards."""
        return sum(shard.size for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a store and what is wrong with it."""

    file: str
    what: str


def info(path: str | Path) -> Info:
    """Return what the manifest of a store says; its shards are not looked at. `path` is that of
    `open`.

    Raises:
        DatastoreError: no store, or a damaged manifest.
    """
    path = place_of(path)
    manifest = read_manifest(path)
    shards = tuple(
        ShardReport(
            shard.name,
            shard.tokens,
            shard.documents,
            ShardLayout.of(shard, manifest.width).size,
            shard.live,
        )
        for shard in manifest.shards
    )
    return Info(path, manifest.vocab_size, f"uint{8 * manifest.width}", manifest.tokenizer, shards)


def verify(path: str | Path) -> list[Damage]:
    """Read every byte of a store, as it is now; return all damage that there is. `path` is that of
    `open`.

    Raises:
        DatastoreError: there is no store.
    """
    path = place_of(path)
    try:
        manifest = read_manifest(path)
    except DatastoreError as error:
        if not os.path.isfile(path / MANIFEST):  # nor where nobody may look
            raise
        return [Damage(MANIFEST, str(error))]
    found = [
        (shard.name, find_damage(path, shard, manifest.vocab_size, manifest.width))
        for shard in manifest.shards
    ]
    damage = [Damage(name, what) for name, what in found if what is not None]
    if damage:  # a writer may have merged shards away meanwhile
        named = {shard.name for shard in read_manifest(path).shards}
        damage = [one for one in damage if one.file in named]
    return damage
