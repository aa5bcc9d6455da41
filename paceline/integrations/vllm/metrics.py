"""What Prometheus is told beside vLLM's own figures; docs/vllm.md says how both come out of one
/metrics.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram

_PREFIX, _LABEL = "paceline:", "model_name"
_SECONDS = [0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2]
_TOKENS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128]


class _Families(NamedTuple):
    drafted: Counter
    accepted: Counter
    failures: Counter
    tokens: Histogram
    seconds: Histogram
    requests: Gauge
    store: Gauge


@cache
def _families() -> _Families:
    """The figures of this process, in Prometheus' own registry, where vLLM has its own."""

    def gauge(name: str, documentation: str) -> Gauge:
        return Gauge(_PREFIX + name, documentation, [_LABEL], multiprocess_mode="livemax")

    return _Families(
        Counter(
            _PREFIX + "spec_decode_num_draft_tokens", "Draft tokens that vLLM was given.", [_LABEL]
        ),
        Counter(
            _PREFIX + "spec_decode_num_accepted_tokens",
            "Draft tokens that were accepted.",
            [_LABEL],
        ),
        Counter(
            _PREFIX + "drafter_failures", "Faults of the drafter: no draft was made.", [_LABEL]
        ),
        Histogram(
            _PREFIX + "tokens_per_step",
            "Tokens a request got in a step.",
            [_LABEL],
            buckets=_TOKENS,
        ),
        Histogram(
            _PREFIX + "retrieval_seconds",
            "Seconds a batch was drafted in.",
            [_LABEL],
            buckets=_SECONDS,
        ),
        gauge("tracked_requests", "Requests that the drafter keeps something for."),
        gauge("store_tokens", "Tokens in the datastore."),
    )


class DraftingMetrics:
    """The figures of one model."""

    def __init__(self, model: str) -> None:
        found = _families()
        self.drafted, self.accepted, self.failures = (
            one.labels(model) for one in (found.drafted, found.accepted, found.failures)
        )
        self.tokens, self.seconds = found.tokens.labels(model), found.seconds.labels(model)
        self.requests, self.store = found.requests.labels(model), found.store.labels(model)
