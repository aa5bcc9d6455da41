"""Create an empty store, to which outputs are appended later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.folder import make_folder
from paceline.datastore.layout import MANIFEST, Manifest, store_folder, write_manifest
from paceline.datastore.lock import writing
from paceline.datastore.store_settings import MAX_VOCAB_SIZE
from paceline.util.config import require_count, require_range


def has_store(path: str | Path) -> bool:
    """Return whether a folder contains a store, which may be damaged."""
    return (store_folder(path) / MANIFEST).exists()


def create(path: str | Path, vocab_size: int, *, tokenizer: Any = None) -> None:
    """Create a store without documents; an existing store stays unchanged.

    Args:
        path: Folder of the store, which is created if needed. An existing folder must be empty or
            contain a store.
        vocab_size: Vocabulary size, from 1 to 2^32.
        tokenizer: Tokenizer of the ids that will be appended, or its fingerprint. If given, the
            store will reject other tokenizers.
    Raises:
        DatastoreError: The folder cannot be written, another writer has locked the store, or the
            folder contains unrelated files.
        ConfigError: An argument is out of range.
    """
    require_count("store", "vocab_size", vocab_size, 1)
    require_range("store", "vocab_size", vocab_size, 1, MAX_VOCAB_SIZE)
    path = store_folder(path, written=True)
    make_folder(path)
    with writing(path, "create"):
        if not has_store(path):
            write_manifest(path, Manifest(vocab_size, fingerprint_of(tokenizer)))
