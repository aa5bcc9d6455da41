"""Collect the metrics of a server, and export them to Prometheus.

The metrics use vLLM's names with the prefix "paceline:". docs/guides/server.md explains how the
server computes each metric.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.core.metrics import Stats
from paceline.llm import LLM, Chunk
from paceline.serve.settings import LatencyBuckets
from paceline.serve.tally import Tally

_PREFIX = "paceline:"
_LABEL = "model_name"
_BUCKETS = LatencyBuckets()
# Name of each metric: (attribute of `LLM.load`, documentation).
_GAUGES = {
    "num_requests_running": ("running", "Answers that are being generated."),
    "num_requests_waiting": ("waiting", "Answers that wait for a slot."),
    "kv_cache_usage_perc": ("cache_usage", "Share of the KV cache in use, 0 to 1."),
}
_COUNTERS = {
    "num_preemptions": ("preemptions", "Preempted answers."),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts."),
    "generation_tokens": ("new_tokens", "Tokens of answers."),
    "prefix_cache_queries": ("prompt_tokens", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_hits", "Prompt tokens found in the prefix cache."),
    "spec_decode_num_draft_tokens": ("drafted_tokens", "Draft tokens that were verified."),
    "spec_decode_num_accepted_tokens": ("accepted_tokens", "Draft tokens that were accepted."),
    "target_forwards": ("forwards", "Forward passes of the target."),
    "drafter_failures": (
        "drafter_failures",
        "Answers that continued without drafts after their drafter failed.",
    ),
}


class ServerMetrics:
    """Collects metrics about the answers that one server generates.

    Attributes:
        tally: Counts of draft tokens by source.
    """

    def __init__(self, llm: LLM, name: str) -> None:
        self.tally = Tally()
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(llm, name))
        self._name = name
        self.first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the request to its first token.",
            _BUCKETS.first_token,
        )
        self.token_interval = self._histogram(
            "inter_token_latency_seconds",
            "Between two successive steps of an answer.",
            _BUCKETS.token_interval,
        )
        self.time_per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Per answer: (last step - first step) / tokens after the first step.",
            _BUCKETS.token_interval,
        )
        self.request_latency = self._histogram(
            "e2e_request_latency_seconds", "From the request to its last token.", _BUCKETS.request
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds",
            "From the request to its slot in the batch.",
            _BUCKETS.request,
        )
        self.ended = self._counter(
            "request_success", "Finished answers by reason.", "finished_reason"
        )
        self.requests = self._counter("http_requests", "Requests to /v1, by status.", "status")

    def watch(self) -> AnswerTimer:
        """Start measuring an answer."""
        return AnswerTimer(self)

    def count_end(self, reason: str) -> None:
        """Count a finished answer by its finish reason: "stop", "length" or "abort"."""
        self.ended.labels(self._name, reason).inc()

    def count_status(self, status: int) -> None:
        """Count a response by its HTTP status."""
        self.requests.labels(self._name, str(status)).inc()

    def exposition(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            _PREFIX + name, documentation, [_LABEL], buckets=buckets, registry=self._registry
        )
        return histogram.labels(self._name)

    def _counter(self, name: str, documentation: str, label: str) -> Counter:
        return Counter(_PREFIX + name, documentation, [_LABEL, label], registry=self._registry)


class AnswerTimer:
    """Measures the duration of one answer and of its steps."""

    def __init__(self, meter: ServerMetrics) -> None:
        self._meter = meter
        self._began = time.perf_counter()
        self._first = self._last = 0.0
        self._num_first_tokens = 0  # number of tokens in the first step
        self._reason = "abort"

    def record(self, chunk: Chunk) -> None:
        """Record that the engine has just delivered the tokens of a step."""
        now = time.perf_counter()
        if chunk.outcome is not None:
            self._meter.tally.add(chunk.outcome)
        if not self._first:
            self._first, self._num_first_tokens = now, len(chunk.token_ids)
            self._meter.first_token.observe(now - self._began)
        else:
            self._meter.token_interval.observe(now - self._last)
        self._last = now
        if chunk.completion is not None:
            self._reason = chunk.completion.finish_reason
            self._record_request(now, chunk.completion.stats)

    def end(self) -> None:
        """Count the answer by its finish reason, or as aborted if it did not finish."""
        self._meter.count_end(self._reason)

    def _record_request(self, now: float, stats: Stats) -> None:
        self._meter.request_latency.observe(now - self._began)
        self._meter.queue_time.observe(max(0.0, now - self._began - stats.seconds))
        later = stats.new_tokens - self._num_first_tokens
        if later > 0:
            self._meter.time_per_token.observe((now - self._first) / later)


class _EngineCollector(Collector):
    """Exports the engine's counters whenever Prometheus scrapes the server."""

    def __init__(self, llm: LLM, name: str) -> None:
        self._llm, self._name = llm, name

    def collect(self) -> Iterable[Metric]:
        """Yield the current values of the engine's metrics."""
        load = self._llm.load
        for name, (attribute, documentation) in _GAUGES.items():
            gauge = GaugeMetricFamily(_PREFIX + name, documentation, labels=[_LABEL])
            gauge.add_metric([self._name], getattr(load, attribute))
            yield gauge
        for name, (attribute, documentation) in _COUNTERS.items():
            counter = CounterMetricFamily(_PREFIX + name, documentation, labels=[_LABEL])
            counter.add_metric([self._name], getattr(load, attribute))
            yield counter
        guarantee = GaugeMetricFamily(
            _PREFIX + "batch_invariant",
            "1 if answers are bit-identical regardless of the drafts and the batch, else 0; with"
            " the reason.",
            labels=[_LABEL, "reason"],
        )
        invariance = self._llm.invariance
        guarantee.add_metric([self._name, invariance.reason], float(invariance.on))
        yield guarantee
