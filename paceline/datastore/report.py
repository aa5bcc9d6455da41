"""Report the contents of a datastore, and any damage."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from paceline.datastore.layout import MANIFEST, ShardLayout, read_manifest, store_folder
from paceline.datastore.shard import find_damage
from paceline.errors import DatastoreError


@dataclass(frozen=True, slots=True)
class ShardReport:
    """Description of one shard of a datastore.

    Attributes:
        name: File name.
        tokens: Number of tokens without separators.
        documents: Number of documents.
        size: Size in bytes.
        live: Whether `Datastore.append` wrote the shard, rather than `build` or `add`.
    """

    name: str
    tokens: int
    documents: int
    size: int
    live: bool


@dataclass(frozen=True, slots=True)
class Info:
    """Description of a datastore, taken from its manifest.

    Attributes:
        path: Folder of the datastore.
        vocab_size: Vocabulary size; all token ids are smaller.
        dtype: Data type of a token on disk.
        tokenizer: Fingerprint of the tokenizer; None if it is unknown.
        shards: Descriptions of the shards.
    """

    path: Path
    vocab_size: int
    dtype: str
    tokenizer: str | None
    shards: tuple[ShardReport, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens in all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        """Number of documents in all shards."""
        return sum(shard.documents for shard in self.shards)

    @property
    def size(self) -> int:
        """Size of all shards in bytes."""
        return sum(shard.size for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged file of a datastore, with a description of the damage."""

    file: str
    what: str


def info(path: str | Path) -> Info:
    """Describe a datastore according to its manifest, without reading the shards.

    Args:
        path: Folder of the store; "demo" is the built-in store.
    Raises:
        DatastoreError: The store does not exist, or its manifest is damaged.
    """
    path = store_folder(path)
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
    """Read every byte of a datastore, and return a list of the damage.

    Args:
        path: Folder of the store; "demo" is the built-in store.
    Raises:
        DatastoreError: The store does not exist.
    """
    path = store_folder(path)
    try:
        manifest = read_manifest(path)
    except DatastoreError as error:
        if not os.path.isfile(path / MANIFEST):  # also false if the folder cannot be searched
            raise
        return [Damage(MANIFEST, str(error))]
    results = [
        (shard.name, find_damage(path, shard, manifest.vocab_size, manifest.width))
        for shard in manifest.shards
    ]
    damages = [Damage(name, damage) for name, damage in results if damage is not None]
    if damages:  # a writer may have merged these shards into others in the meantime
        current = {shard.name for shard in read_manifest(path).shards}
        damages = [damage for damage in damages if damage.file in current]
    return damages
