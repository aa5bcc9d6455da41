"""Report drafting metrics to Prometheus, in addition to vLLM's own metrics.

docs/guides/vllm.md lists the metrics.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram

from paceline.integrations.vllm.settings import MetricBuckets

_PREFIX, _LABEL = "paceline:", "model_name"
_BUCKETS = MetricBuckets()


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
    """Create the metrics once per process, in the Prometheus registry that vLLM uses."""

    def gauge(name: str, documentation: str) -> Gauge:
        return Gauge(_PREFIX + name, documentation, [_LABEL], multiprocess_mode="livemax")

    return _Families(
        Counter(_PREFIX + "spec_decode_num_draft_tokens", "Draft tokens passed to vLLM.", [_LABEL]),
        Counter(_PREFIX + "spec_decode_num_accepted_tokens", "Accepted draft tokens.", [_LABEL]),
        Counter(
            _PREFIX + "drafter_failures", "Errors of the drafter; no draft was made.", [_LABEL]
        ),
        Histogram(
            _PREFIX + "tokens_per_step",
            "Tokens per request and step.",
            [_LABEL],
            buckets=_BUCKETS.tokens,
        ),
        Histogram(
            _PREFIX + "retrieval_seconds",
            "Seconds to draft for a batch.",
            [_LABEL],
            buckets=_BUCKETS.seconds,
        ),
        gauge("tracked_requests", "Requests with drafter state."),
        gauge("store_tokens", "Tokens in the datastore."),
    )


class DraftingMetrics:
    """Prometheus metrics of drafting, labelled with the name of one model."""

    def __init__(self, model: str) -> None:
        families = _families()
        self.drafted, self.accepted, self.failures = (
            counter.labels(model)
            for counter in (families.drafted, families.accepted, families.failures)
        )
        self.tokens, self.seconds = families.tokens.labels(model), families.seconds.labels(model)
        self.requests, self.store = families.requests.labels(model), families.store.labels(model)
