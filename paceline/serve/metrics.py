"""What Prometheus is told, by vLLM's names with our prefix; docs/serve.md has every formula."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.core.metrics import Stats
from paceline.llm import LLM, Chunk
from paceline.serve.tally import Tally

_PREFIX = "paceline:"
_LABEL = "model_name"
_FIRST = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
]  # fmt: skip
_BETWEEN = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
]  # fmt: skip
_WHOLE = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
]  # fmt: skip
_GAUGES = {
    "num_requests_running": ("running", "Answers that are worked on."),
    "num_requests_waiting": ("waiting", "Answers that wait for a place."),
    "kv_cache_usage_perc": ("cache_usage", "Share of the cache in use, 0 to 1."),
}  # name: (attribute of `LLM.load`, documentation)
_COUNTERS = {
    "num_preemptions": ("preemptions", "Answers that were put back to wait."),
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts."),
    "generation_tokens": ("new_tokens", "Tokens of answers."),
    "prefix_cache_queries": (
        "prompt_tokens",
        "Tokens of prompts that were looked for in the cache.",
    ),
    "prefix_cache_hits": (
        "prefix_hits",
        "Tokens of prompts that were in the cache, and not computed again.",
    ),
    "spec_decode_num_draft_tokens": ("drafted_tokens", "Draft tokens that were verified."),
    "spec_decode_num_accepted_tokens": ("accepted_tokens", "Draft tokens that were accepted."),
    "target_forwards": ("forwards", "Forwards of the model."),
    "drafter_failures": (
        "drafter_failures",
        "Answers that went on without drafts after their drafter failed.",
    ),
}


class ServerMetrics:
    """Measures the answers of one application. It has a registry of its own; `tally` counts
    draft tokens by origin.
    """

    def __init__(self, llm: LLM, name: str) -> None:
        self.tally = Tally()
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(llm, name))
        self._name = name
        self.first = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", _FIRST
        )
        self.between = self._histogram(
            "inter_token_latency_seconds", "Between two steps with tokens of an answer.", _BETWEEN
        )
        self.each = self._histogram(
            "request_time_per_output_token_seconds",
            "Of an answer: (last step - first step) / tokens after the first step.",
            _BETWEEN,
        )
        self.whole = self._histogram(
            "e2e_request_latency_seconds", "From the request to its last token.", _WHOLE
        )
        self.queue = self._histogram(
            "request_queue_time_seconds", "From the request to its place in the batch.", _WHOLE
        )
        self.ended = self._counter(
            "request_success", "Answers that ended, by the reason.", "finished_reason"
        )
        self.requests = self._counter("http_requests", "Requests to /v1, by status.", "status")

    def watch(self) -> AnswerTimer:
        """Begin to measure an answer."""
        return AnswerTimer(self)

    def count_end(self, reason: str) -> None:
        """An answer has ended: "stop", "length" or "abort"."""
        self.ended.labels(self._name, reason).inc()

    def count_status(self, status: int) -> None:
        """A request has been answered with this status."""
        self.requests.labels(self._name, str(status)).inc()

    def page(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, documentation: str, buckets: list[float]) -> Histogram:
        found = Histogram(
            _PREFIX + name, documentation, [_LABEL], buckets=buckets, registry=self._registry
        )
        return found.labels(self._name)

    def _counter(self, name: str, documentation: str, label: str) -> Counter:
        return Counter(_PREFIX + name, documentation, [_LABEL, label], registry=self._registry)


class AnswerTimer:
    """The times of one answer."""

    def __init__(self, meter: ServerMetrics) -> None:
        self._meter = meter
        self._began = time.perf_counter()
        self._first = self._last = 0.0
        self._of_first = 0  # tokens of the first step
        self._reason = "abort"

    def see(self, chunk: Chunk) -> None:
        """A step has added to it."""
        now = time.perf_counter()
        if chunk.outcome is not None:
            self._meter.tally.add(chunk.outcome)
        if not self._first:
            self._first, self._of_first = now, len(chunk.token_ids)
            self._meter.first.observe(now - self._began)
        else:
            self._meter.between.observe(now - self._last)
        self._last = now
        if chunk.completion is not None:
            self._reason = chunk.completion.finish_reason
            self._see_whole(now, chunk.completion.stats)

    def end(self) -> None:
        """Nothing more will come."""
        self._meter.count_end(self._reason)

    def _see_whole(self, now: float, stats: Stats) -> None:
        self._meter.whole.observe(now - self._began)
        self._meter.queue.observe(max(0.0, now - self._began - stats.seconds))
        later = stats.new_tokens - self._of_first
        if later > 0:
            self._meter.each.observe((now - self._first) / later)


class _EngineCollector(Collector):
    """What the engine counts by itself, read when it is asked for."""

    def __init__(self, llm: LLM, name: str) -> None:
        self._llm, self._name = llm, name

    def collect(self) -> Iterable[Metric]:
        """The engine's figures."""
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
            "1 where answers have the same bits with any drafts and in any batch, else 0, and why.",
            labels=[_LABEL, "reason"],
        )
        invariance = self._llm.invariance
        guarantee.add_metric([self._name, invariance.reason], float(invariance.on))
        yield guarantee
