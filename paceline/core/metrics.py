"""Define the reported figures, each with its formula."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.request import Request


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one finished request.

    Attributes:
        target_forwards: Forward passes of the target for this request, prefill included.
        prefill_forwards: Forward passes before its first token.
        draft_forwards: Forward passes of a draft model.
        new_tokens: Tokens emitted.
        drafted_tokens: Draft nodes verified.
        accepted_tokens: Draft nodes accepted.
        cached_tokens: Prompt tokens whose keys and values an earlier request left in the cache.
        query_tokens: Tokens that each forward pass computed: pending tokens and nodes.
        notes: Counters of the drafter, by name; its documentation describes them.
        seconds: Wall-clock time from admission to the last token.
        batch_invariant: The bits of the logits do not depend on drafts, batch or chunks
            (`LLM.invariance` has the reason).
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

        The first token belongs to the prefill, so plain decoding scores exactly 1. Without a
        decoding pass, the result is `new_tokens`.
        """
        decoding = self.target_forwards - self.prefill_forwards
        return (self.new_tokens - 1) / decoding if decoding else float(self.new_tokens)

    @property
    def fed(self) -> list[int]:
        """Return `query_tokens` under its short public name."""
        return self.query_tokens

    @property
    def acceptance_rate(self) -> float:
        """Return accepted_tokens / drafted_tokens; 0 without drafts."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @staticmethod
    def of(request: Request, seconds: float, batch_invariant: bool = False) -> Stats:
        """Return the counts of a request."""
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
    """Counts of an engine since it was built, and its open requests.

    Attributes:
        waiting: Requests that wait for a slot now.
        running: Requests that have a slot now.
        cache_usage: Share of the cache memory limit that holds tokens now, 0 to 1. Without a limit,
            the share of the allocated memory.
        kept_requests: Ended requests whose keys and values are in the cache now.
        finished: Requests that ended by themselves.
        aborted: Requests that were withdrawn or failed.
        prompt_tokens: Prompt tokens of admitted requests.
        prefix_hits: Prompt tokens found in the cache.
        preemptions: Number of times a request lost its slot to another one.
        drafter_failures: Requests that continued without their drafter.
        new_tokens: As in `Stats`, over all requests.
        drafted_tokens: As in `Stats`, over all requests.
        accepted_tokens: As in `Stats`, over all requests.
        forwards: Forward passes of the target.
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
    """Seconds of wall-clock time in all steps, since the engine was built.

    On an accelerator, a launch returns before its result exists, so only `step` is meaningful.

    Attributes:
        step: Time in steps.
        target_forward: Time in forward passes of the target.
        draft_forward: Time in forward passes of draft models.
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
        """Return target_forward / step."""
        return self.target_forward / self.step if self.step else 0.0

    @property
    def draft_share(self) -> float:
        """Return draft_forward / step."""
        return self.draft_forward / self.step if self.step else 0.0

    @property
    def overhead_share(self) -> float:
        """Return (step - target_forward - draft_forward) / step."""
        overhead = self.step - self.target_forward - self.draft_forward
        return overhead / self.step if self.step else 0.0
