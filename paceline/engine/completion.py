"""Define answers and the chunks of streamed answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.drafter import Outcome
from paceline.core.metrics import Stats
from paceline.core.origin import Origin
from paceline.sampling.stream_writer import TokenMark, token_origins


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer to one prompt.

    Attributes:
        text: Text of the answer, cut before a stop string; "" without a tokenizer. It continues the
            prompt's text: both joined are the text of all tokens. An unfinished character at the
            end is U+FFFD.
        token_ids: Tokens of the answer, an end-of-sequence token included.
        finish_reason: "stop" (end-of-sequence, stop token or stop string) or "length".
        stats: Counts of the request.
        logprobs: Per token, with `SamplingParams.logprobs`: token id -> log-probability by the
            model's own logits, before any option changes them. The entries are the likeliest
            tokens, likeliest first, and the chosen one.
        prompt_logprobs: Per token of the prompt, with `SamplingParams.prompt_logprobs`, as
            `logprobs`. None for the first token, which has no token before it.
        others: The further answers, with `SamplingParams.n`.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    others: tuple[Completion, ...] = ()

    @property
    def outputs(self) -> list[Completion]:
        """Return all answers to the prompt, this one first."""
        return [self, *self.others]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens and the text that one step added to a streamed answer.

    Attributes:
        text: Text that became final. The joined texts of all chunks are the completion's text.
        token_ids: Tokens of this step.
        accepted: Per token, whether it came from the draft tree.
        pieces: (text, accepted) per token with text, for displays; joined, they are `text`.
        completion: The finished answer, in the last chunk.
        logprobs: As in `Completion`, for the tokens of this step.
        origins: Source of each token, a word of `paceline.core.origin.Origin`: "target" (the bonus
            token or a plain one), "prompt", "output", "datastore", ...
        marks: Token that each piece belongs to. Text that may become a stop string is held back,
            possibly for several steps.
        outcome: Outcome of this step, with the verified draft tree; None outside an engine.
        step: Steps of the answer so far, prefill included.
        forwards: Forward passes of the target so far, prefill included. Passes that a preemption
            repeats do not count.
        prompt_logprobs: As in `Completion`, in the first chunk.
    """

    text: str
    token_ids: list[int]
    accepted: list[bool]
    pieces: list[tuple[str, bool]]
    completion: Completion | None = None
    logprobs: list[dict[int, float]] | None = None
    origins: list[str] = field(default_factory=list)
    marks: list[TokenMark] = field(default_factory=list)
    outcome: Outcome | None = None
    step: int = 0
    forwards: int = 0
    prompt_logprobs: list[dict[int, float] | None] | None = None

    @staticmethod
    def of(
        outcome: Outcome,
        written: list[tuple[str, TokenMark]],
        step: int,
        forwards: int,
        completion: Completion | None = None,
    ) -> Chunk:
        """Return the chunk of a step.

        Args:
            outcome: Outcome of the step.
            written: Pieces of text that became final with it.
            step: As in `Chunk`.
            forwards: As in `Chunk`.
            completion: As in `Chunk`.
        """
        origins = token_origins(outcome)
        return Chunk(
            "".join(piece for piece, _ in written),
            outcome.new_token_ids,
            [origin != Origin.TARGET for origin in origins],
            [(piece, mark.origin != Origin.TARGET) for piece, mark in written],
            completion,
            outcome.logprobs,
            [origin.word for origin in origins],
            [mark for _, mark in written],
            outcome,
            step,
            forwards,
            outcome.request.prompt_logprobs if step == 1 else None,
        )
