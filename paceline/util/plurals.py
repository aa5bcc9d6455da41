"""Write counts in messages, such as "1 shard" or "2 shards"."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 shard" or "2 shards".

    Args:
        count: Number of things.
        noun: Singular of a noun whose plural adds an "s".
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
