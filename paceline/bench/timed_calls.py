"""Define the timed calls of a run, and the comparison of its answers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.metrics import Stats, Timing


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """The engine's counts for one answer.

    Attributes:
        target_forwards, prefill_forwards, draft_forwards, drafted_tokens, accepted_tokens: As in
            `Stats`.
        decode_fed: Number of query tokens in all forward passes after prefill.
        trees: Number of forward passes that verified at least one node.
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
        """Return the counts from a completion's statistics."""
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
    """The token counts of one answer, and its comparison with the reference answer.

    Attributes:
        prompt: Id of the prompt.
        category: Category of the prompt.
        prompt_tokens, new_tokens: Number of tokens in the prompt, and in the answer.
        equal: Whether the answer has the same tokens as the reference method's answer; None if no
            reference answer applies.
        counts: The engine's counts; None if the method does not use the engine.
    """

    prompt: str
    category: str
    prompt_tokens: int
    new_tokens: int
    equal: bool | None
    counts: AnswerCounts | None


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A timed call of one method for a prompt or a batch of prompts.

    Attributes:
        method: Name of the method.
        unit: Index of the prompt or batch.
        repeat: Index of the repetition.
        seconds: Wall-clock time of the call, in seconds.
        cpu_seconds: Processor time that the process used during the call, in seconds.
        timing: Time that the engine spent in each phase, in seconds; None if unknown.
        peak_memory: Maximum accelerator memory allocated during the call, in bytes; None if
            unknown.
        rows: For each answer, its token counts and its comparison with the reference answer.
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
        """Return the total number of tokens in the answers."""
        return sum(row.new_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A guarantee that a drafter's answers equal those of plain decoding bit for bit.

    Attributes:
        on: Whether the guarantee holds in every batch (`LLM.invariance`).
        reason: Why the guarantee holds, or why it does not.
    """

    on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a method's answer and the reference answer.

    Attributes:
        method: Name of the method.
        prompt: Id of the prompt.
        position: Index of the first differing token in both answers.
        expected, got: Token in the reference answer, and token in the method's answer. None if that
            answer has already ended.
        top_logit: The target's largest logit at this position, from a separate forward pass.
        top_gap: Difference between the target's two largest logits at this position.
        choice_gap: Difference between the logits of `expected` and `got`; None if an answer has
            ended.
    """

    method: str
    prompt: str
    position: int
    expected: int | None
    got: int | None
    top_logit: float
    top_gap: float
    choice_gap: float | None
