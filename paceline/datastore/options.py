"""Define the options for writing a datastore and for online updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.datastore.store_settings import (
    MAX_TEXT_SIZE,
    MIN_SHARD_TOKENS,
    MIN_UPDATE_TOKENS,
    SORT_BYTES_PER_TOKEN,
    SORT_MEMORY,
)
from paceline.errors import ConfigError
from paceline.util.machine import usable_cores

# Receives the phase ("read", "sort" or "merge"), the tokens done, and the total if known.
Progress = Callable[[str, int, int | None], None]


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignore reports of a writer's progress."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Size of shards, and the memory and threads that a writer may use.

    Attributes:
        shard_tokens: Maximum number of tokens and separators in a shard; at least 1024. Fewer,
            larger shards are searched faster. Default 0: as many as `memory` allows.
        memory: Memory for sorting one shard, in bytes; default 2 GiB.
        workers: Number of sorting threads, which do not hold the interpreter lock. Default 0: one
            per core.
        progress: Function called with the phase, the number of tokens processed, and the total or
            None.
    Raises:
        ConfigError: A value is out of range.
    """

    shard_tokens: int = 0
    memory: int = SORT_MEMORY
    workers: int = 0
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        if self.shard_tokens and not MIN_SHARD_TOKENS <= self.shard_tokens <= MAX_TEXT_SIZE:
            raise ConfigError(
                f"store: got shard_tokens={self.shard_tokens}; expected {MIN_SHARD_TOKENS} to"
                f" {MAX_TEXT_SIZE}, or 0."
            )
        if self.memory < MIN_SHARD_TOKENS * SORT_BYTES_PER_TOKEN or self.workers < 0:
            raise ConfigError(
                f"store: got memory={self.memory}, workers={self.workers}; expected at least"
                f" {MIN_SHARD_TOKENS * SORT_BYTES_PER_TOKEN} bytes and 0 workers."
            )

    @property
    def max_text_size(self) -> int:
        """Maximum number of tokens and separators in a shard."""
        return self.shard_tokens or min(MAX_TEXT_SIZE, self.memory // SORT_BYTES_PER_TOKEN)

    @property
    def num_threads(self) -> int:
        """Number of threads that sort the text of a shard."""
        return self.workers or usable_cores()


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """Options for storing outputs that are appended to an open datastore.

    Attributes:
        max_tokens: Maximum number of appended tokens on disk; at least 4096; default 20 million.
            Above this number, the oldest shards are dropped. One shard holds at most about a
            quarter of `max_tokens`.
        max_unwritten_tokens: Number of tokens in memory that triggers a write to disk; at least 1;
            default 65,536. If writing fails, up to four times this number of tokens stay in
            memory. A separate limit of `max_unwritten_tokens` applies to the tokens of unfinished
            outputs.
        max_unwritten_s: Seconds after which an output is written to disk; positive; default 30.
        lock_timeout_s: Seconds that `flush` and `close` wait for another writer; default 10.
    Raises:
        ConfigError: A value is out of range.
    """

    max_tokens: int = 20_000_000
    max_unwritten_tokens: int = 65_536
    max_unwritten_s: float = 30.0
    lock_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if (
            self.max_tokens < MIN_UPDATE_TOKENS
            or self.max_unwritten_tokens < 1
            or self.max_unwritten_s <= 0
            or self.lock_timeout_s < 0
        ):
            raise ConfigError(
                f"updates: got {self}; expected max_tokens >= {MIN_UPDATE_TOKENS},"
                " max_unwritten_tokens >= 1, max_unwritten_s > 0 and lock_timeout_s >= 0."
            )
