"""The documents of a datastore, for drafters and stores that are made of them."""

from __future__ import annotations

import numpy as np

from paceline.datastore.layout import place_of, read_manifest
from paceline.datastore.shard import read_text


def documents(store: str, most: int) -> list[list[int]]:
    """Documents of a store (a folder, or "demo"), evenly spread, with about `most` tokens in all.

    Raises:
        DatastoreError: no store, or a damaged shard.
    """
    path = place_of(store)
    manifest = read_manifest(path)
    step = max(1.0, sum(info.tokens for info in manifest.shards) / most)
    texts: list[list[int]] = []
    for info in manifest.shards:
        text = read_text(path, info, manifest.vocab_size, manifest.width)
        ends = np.flatnonzero(text == info.separator)
        starts = np.concatenate([[0], ends[:-1] + 1])
        chosen = np.arange(0, len(ends), step).astype(np.int64)
        texts += [text[start:end].tolist() for start, end in zip(starts[chosen], ends[chosen], strict=True)]
    return texts
