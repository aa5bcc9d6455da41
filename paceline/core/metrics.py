"""What is reported, each figure with its formula."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.request import Request


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one finished request.

    Attributes:
        target_forwards: forwards of the target this request took part in, prefill included.
        prefill_forwards: those before it had its first token.
        draft_forwards: forwards of a draft model.
        new_tokens: tokens emitted; drafted_tokens: nodes verified; accepted_tokens: nodes kept.
        cached_tokens: tokens of the prompt that were not fed, since the cache had them from an
            earlier request.
        fed: target query tokens of each forward (pending tokens + nodes).
        notes: what the drafter counted of its own, by name (its documentation says what).
        seconds: wall-clock from admission to the last token.
        batch_invariant: its bits do not depend on drafts, batch or chunks (`LLM.invariance` says
            why or why not).
    """

    target_forwards: int
    prefill_forwards: int
    draft_forwards: int
    new_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    cached_tokens: int
    fed: list[int]
    notes: dict[str, int]
    seconds: float
    batch_invariant: bool

    @property
    def tokens_per_forward(self) -> float:
        """(new_tokens - 1) / (target_forwards - prefill_forwards): the first token belongs to the
        prefill, so plain decoding scores exactly 1. Where the prefill forward alone gave
        everything: new_tokens."""
        decoding = self.target_forwards - self.prefill_forwards
        return (self.new_tokens - 1) / decoding if decoding else float(self.new_tokens)

    @property
    def acceptance_rate(self) -> float:
        """accepted_tokens / drafted_tokens; 0 if nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @staticmethod
    def of(request: Request, seconds: float, batch_invariant: bool = False) -> Stats:
        """The counts of `request`."""
        raw = request.counters
        return Stats(
            target_forwards=raw.target_forwards,
            prefill_forwards=raw.prefill_forwards,
            draft_forwards=raw.draft_forwards,
            new_tokens=len(request) - request.prompt_length,
            drafted_tokens=raw.drafted_tokens,
            accepted_tokens=raw.accepted_tokens,
            cached_tokens=raw.cached_tokens,
            fed=list(raw.fed),
            notes=dict(raw.notes),
            seconds=seconds,
            batch_invariant=batch_invariant,
        )


@dataclass(slots=True)
class EngineLoad:
    """What an engine has done since it was built, and what it has to do now.

    Attributes:
        waiting, running: requests now.
        cache_usage: share of the memory that the cache may take which holds tokens now: 0 to 1; of
            what is allocated where it may take any.
        kept: ended requests whose keys and values are in the cache now.
        finished, aborted: requests that ended by themselves, and that were withdrawn or failed.
        prompt_tokens: of requests that got a place. prefix_hits: of these, found in the cache.
        preemptions: requests that gave their place back for a while. drafter_failures: that went on
            without their drafter.
        new_tokens, drafted_tokens, accepted_tokens: as in `Stats`, over all requests.
        forwards: of the target.
    """

    waiting: int = 0
    running: int = 0
    cache_usage: float = 0.0
    kept: int = 0
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
    """Where the wall-clock of the steps went, in seconds, summed since the engine was built.

    On an accelerator the launch of a forward returns before its result: only `step` is meaningful
    there.
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
        """target_forward / step."""
        return self.target_forward / self.step if self.step else 0.0

    @property
    def draft_share(self) -> float:
        """draft_forward / step."""
        return self.draft_forward / self.step if self.step else 0.0

    @property
    def overhead_share(self) -> float:
        """(step - target_forward - draft_forward) / step: everything that is no model forward."""
        return (
            (self.step - self.target_forward - self.draft_forward) / self.step if self.step else 0.0
        )
