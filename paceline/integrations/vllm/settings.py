"""Define the settings for drafting inside vLLM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProposerSettings:
    """Settings for `Proposer`, the class that drafts inside vLLM.

    Attributes:
        max_nodes: Maximum number of nodes in the draft tree from which the proposed chain is taken.
        max_missed_calls: A request counts as finished if it is missing from this many consecutive
            vLLM calls.
        retry_seconds: Number of seconds before another attempt to open an unreadable datastore.
        log_seconds: Minimum number of seconds between two log lines about errors.
        store_seconds: Number of seconds between two measurements of the datastore's size.
    """

    max_nodes: int = 48
    max_missed_calls: int = 32
    retry_seconds: float = 30.0
    log_seconds: float = 30.0
    store_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class MetricBuckets:
    """Bucket bounds of the Prometheus histograms.

    Attributes:
        seconds: Bounds for the time to draft for a batch, in seconds.
        tokens: Bounds for the number of tokens that a request receives in a step.
    """

    seconds: tuple[float, ...] = (
        0.00002,
        0.00005,
        0.0001,
        0.0002,
        0.0005,
        0.001,
        0.002,
        0.005,
        0.01,
        0.05,
        0.2,
    )
    tokens: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128)
