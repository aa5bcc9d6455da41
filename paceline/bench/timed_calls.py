"""Hold the timed calls of a run and the comparisons of its answers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.metrics import Stats, Timing


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Counts of the engine for one answer.

    Attributes:
        target_forwards, prefill_forwards, draft_forwards, drafted_tokens, accepted_tokens: As in
            `Stats`.
        decode_fed: Query tokens of all forwards after the prefill.
        trees: Forwards that verified at least one node.
    """

    target_forwards: int
    prefill_forwards: int
    draft_forwards: int
    drafted_tokens: int
    accepted_tokens: int
    decode_fed: int
    trees: int

    @staticmethod
    def of(stats: Stats) -> AnswerCounts:
        """Return the counts of a completion's statistics."""
        # A decoding forward has one pending token, so all its other query tokens are nodes.
        nodes = [count - 1 for count in stats.query_tokens[stats.prefill_forwards :]]
        with_prefill = stats.drafted_tokens > sum(nodes)  # the last prefill chunk had a tree
        return AnswerCounts(
            stats.target_forwards,
            stats.prefill_forwards,
            stats.draft_forwards,
            stats.drafted_tokens,
            stats.accepted_tokens,
            sum(stats.query_tokens[stats.prefill_forwards :]),
            sum(n > 0 for n in nodes) + with_prefill,
        )


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """The figures of one answer.

    Attributes:
        prompt: Id of the prompt.
        category: Category of the prompt.
        prompt_tokens, new_tokens: Numbers of tokens.
        equal: Whether the tokens equal those of the reference; None if they need not.
        counts: Counts of the engine; None for other methods.
    """

    prompt: str
    category: str
    prompt_tokens: int
    new_tokens: int
    equal: bool | None
    counts: AnswerCounts | None


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A timed call: a prompt, or a batch of prompts, with one method.

    Attributes:
        method: Name of the method.
        unit: Index of the prompt or batch.
        repeat: Index of the pass.
        seconds: Wall-clock time.
        cpu_seconds: Processor time of the process.
        timing: Times of the engine in seconds; None if unknown.
        peak_memory: Accelerator memory allocated during the call, in bytes.
        rows: The answers.
    """

    method: str
    unit: int
    repeat: int
    seconds: float
    cpu_seconds: float
    timing: Timing | None
    peak_memory: int | None
    rows: tuple[AnswerRow, ...]

    @property
    def new_tokens(self) -> int:
        """Return the number of tokens of all answers."""
        return sum(row.new_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A drafter's guarantee that its answers have the bits of plain decoding.

    Attributes:
        on: Whether the guarantee holds in any batch (`LLM.invariance`).
        reason: Why it holds, or why not.
    """

    on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between an answer and the reference.

    Attributes:
        method: Name of the method.
        prompt: Id of the prompt.
        position: Index of the first differing token in the answer.
        expected, got: Tokens of the reference and of the method; None past the end of an answer.
        top_logit: The target's largest logit at this position, from a separate forward pass.
        top_gap: Difference between the two largest logits.
        choice_gap: Difference between the logits of `expected` and `got`.
    """

    method: str
    prompt: str
    position: int
    expected: int | None
    got: int | None
    top_logit: float
    top_gap: float
    choice_gap: float | None
