"""Create a datastore's folder, and remove files that its manifest does not list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.datastore.layout import LOCK, MANIFEST, read_manifest
from paceline.errors import DatastoreError


def make_folder(path: Path) -> None:
    """Create the folder for a new datastore, unless it already exists.

    Raises:
        DatastoreError: The folder cannot be created, or it contains unrelated files.
    """
    if path.is_file():
        raise DatastoreError(f"{str(path)!r} is a file. Name a folder for the store.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        foreign = sorted(entry.name for entry in path.iterdir() if not _is_of_store(entry.name))
    except OSError as error:
        raise DatastoreError(
            f"the folder {str(path)!r} for the store cannot be created: {error}. Choose another"
            " folder."
        ) from error
    if foreign:
        raise DatastoreError(
            f"the folder {str(path)!r} is not a store, because it holds {foreign[0]!r}. Choose a"
            " store, or a folder that is empty or does not exist."
        )


@contextmanager
def cleaned(path: Path) -> Iterator[None]:
    """Before and after a write, remove files that the manifest does not list.

    A writer that was killed leaves such files behind.
    """
    try:
        _remove_unnamed(path)
        yield
    finally:
        _remove_unnamed(path)


def _is_of_store(name: str) -> bool:
    return (
        name == LOCK
        or name.startswith(MANIFEST)
        or (name.startswith("shard-") and name.endswith(".bin"))
    )


def _remove_unnamed(path: Path) -> None:
    try:
        named = {shard.name for shard in read_manifest(path).shards}
    except DatastoreError:
        if (path / MANIFEST).exists():
            return  # the manifest is damaged, so the shards stay until a build has replaced it
        named = set()
    for entry in path.iterdir():
        is_current = entry.name in {LOCK, MANIFEST} or entry.name in named
        if _is_of_store(entry.name) and not is_current:
            entry.unlink(missing_ok=True)
