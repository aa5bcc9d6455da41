"""Small datastores, and a slow reference search in their documents."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from paceline import datastore
from paceline.datastore import Snapshot

Documents = list[list[int]]


def random_documents(
    count: int = 40, vocab_size: int = 6, longest: int = 30, seed: int = 0
) -> Documents:
    """Return documents of 1 to `longest` ids with many repetitions."""
    rng = random.Random(seed)
    return [
        [rng.randrange(vocab_size) for _ in range(rng.randint(1, longest))] for _ in range(count)
    ]


def store(path: Path, documents: Documents | None = None, vocab_size: int = 6) -> Path:
    """Build a datastore of `documents` at `path`."""
    datastore.build(
        path, documents or random_documents(vocab_size=vocab_size), vocab_size, workers=1
    )
    return path


def continuations(documents: Documents, query: list[int], depth: int) -> Documents:
    """Return what follows every occurrence of `query`, sorted."""
    size = len(query)
    found = [
        (d, i + size)
        for d in documents
        for i in range(len(d) - size + 1)
        if d[i : i + size] == query
    ]
    return sorted(document[end : end + depth] for document, end in found)


def looked_up(snapshot: Snapshot, query: list[int], depth: int) -> list[Documents]:
    """Return the continuations of each suffix of `query`, longest first.

    Each list is sorted like `continuations`.
    """
    ranges = snapshot.find([query], longest=max(1, len(query)))
    answers = []
    for size in range(int(ranges.lengths[0, 0]), 0, -1):
        low, high = ranges.low[:, size - 1], ranges.high[:, size - 1]
        count = int((high - low).sum())
        ids, lengths = snapshot.gather(low, high, np.array([size]), count, depth)
        answers.append(
            sorted(ids[0, index, : lengths[0, index]].tolist() for index in range(count))
        )
    return answers


def expected(documents: Documents, query: list[int], depth: int) -> list[Documents]:
    """Return the continuations that `looked_up` must find."""
    found = [continuations(documents, query[-size:], depth) for size in range(len(query), 0, -1)]
    return [answer for answer in found if answer]
