"""Define the reported metrics and their formulas."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.request import Request


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts for one finished request.

    Attributes:
        target_forwards: Number of target forward passes for this request, including prefill.
        prefill_forwards: Number of forward passes before the first new token.
        draft_forwards: Number of forward passes of a draft model.
        new_tokens: Number of tokens emitted.
        drafted_tokens: Number of draft nodes verified.
        accepted_tokens: Number of draft nodes accepted.
        cached_tokens: Number of prompt tokens whose keys and values were reused from an earlier
            request.
        query_tokens: Number of query tokens in each forward pass: pending tokens and draft nodes.
        notes: The drafter's counters, by name; the drafter's documentation describes them.
        seconds: Wall-clock time from admission to the last token.
        batch_invariant: Whether the logits are bit-for-bit the same for all drafts, batch sizes and
            prefill chunks (`LLM.invariance` explains how).
    """

    target_forwards: int
    prefill_forwards: int
    draft_forwards: int
    new_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    cached_tokens: int
    query_tokens: list[int]
    notes: dict[str, int]
    seconds: float
    batch_invariant: bool

    @property
    def tokens_per_forward(self) -> float:
        """Return (new_tokens - 1) / (target_forwards - prefill_forwards).

        Prefill produces the first token, so plain decoding scores exactly 1. If there was no
        decoding pass, the result is `new_tokens`.
        """
        decoding = self.target_forwards - self.prefill_forwards
        return (self.new_tokens - 1) / decoding if decoding else float(self.new_tokens)

    @property
    def fed(self) -> list[int]:
        """Return `query_tokens`; `fed` is a short public alias."""
        return self.query_tokens

    @property
    def acceptance_rate(self) -> float:
        """Return accepted_tokens / drafted_tokens; 0 without drafts."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @staticmethod
    def of(request: Request, seconds: float, batch_invariant: bool = False) -> Stats:
        """Build the `Stats` of a request from its counters."""
        raw = request.counters
        return Stats(
            target_forwards=raw.target_forwards,
            prefill_forwards=raw.prefill_forwards,
            draft_forwards=raw.draft_forwards,
            new_tokens=len(request) - request.prompt_length,
            drafted_tokens=raw.drafted_tokens,
            accepted_tokens=raw.accepted_tokens,
            cached_tokens=raw.cached_tokens,
            query_tokens=list(raw.query_tokens),
            notes=dict(raw.notes),
            seconds=seconds,
            batch_invariant=batch_invariant,
        )


@dataclass(slots=True)
class EngineLoad:
    """An engine's open requests, and counts since the engine was built.

    Attributes:
        waiting: Number of requests currently waiting for a slot.
        running: Number of requests that currently have a slot.
        cache_usage: Share of the KV cache's memory limit that is in use, from 0 to 1. If there is
            no limit, share of the allocated memory that is in use.
        kept_requests: Number of finished requests whose keys and values are still in the cache.
        finished: Number of requests that finished normally.
        aborted: Number of requests that were cancelled or failed.
        prompt_tokens: Number of prompt tokens in admitted requests.
        prefix_hits: Number of prompt tokens found in the cache.
        preemptions: Number of times a request lost its slot to another one.
        drafter_failures: Number of requests that continued without their drafter.
        new_tokens: Number of tokens emitted.
        drafted_tokens: Number of draft nodes verified.
        accepted_tokens: Number of draft nodes accepted.
        forwards: Number of target forward passes.
    """

    waiting: int = 0
    running: int = 0
    cache_usage: float = 0.0
    kept_requests: int = 0
    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    drafter_failures: int = 0
    new_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall-clock time since the engine was built, in seconds.

    On an accelerator, only `step` is meaningful, because kernels run asynchronously: a launch
    returns before the kernel has finished.

    Attributes:
        step: Time spent in steps.
        target_forward: Time spent in target forward passes.
        draft_forward: Time spent in forward passes of draft models.
    """

    step: float = 0.0
    target_forward: float = 0.0
    draft_forward: float = 0.0

    def __sub__(self, earlier: Timing) -> Timing:
        return Timing(
            self.step - earlier.step,
            self.target_forward - earlier.target_forward,
            self.draft_forward - earlier.draft_forward,
        )

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.step + other.step,
            self.target_forward + other.target_forward,
            self.draft_forward + other.draft_forward,
        )

    @property
    def forward_share(self) -> float:
        """Return the share of the step time spent in target forward passes."""
        return self.target_forward / self.step if self.step else 0.0

    @property
    def draft_share(self) -> float:
        """Return the share of the step time spent in draft forward passes."""
        return self.draft_forward / self.step if self.step else 0.0

    @property
    def overhead_share(self) -> float:
        """Return the share of the step time spent outside forward passes."""
        overhead = self.step - self.target_forward - self.draft_forward
        return overhead / self.step if self.step else 0.0
