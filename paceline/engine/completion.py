"""What callers get: an answer, and what one step added to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.drafter import Outcome
from paceline.core.metrics import Stats
from paceline.core.origin import Origin
from paceline.sampling.stream_writer import TokenMark, token_origins


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        text: of the answer, cut before a stop string; "" without a tokenizer. It continues the
            prompt's text: both joined are the text of all tokens. An unfinished character at the
            end is U+FFFD.
        token_ids: the answer's tokens, an end-of-sequence token included.
        finish_reason: "stop" (end-of-sequence, stop token or stop string) or "length".
        logprobs: per token, with `SamplingParams.logprobs`: token id -> log-probability by the
            model's own logits, before any option changes them; the likeliest tokens, likeliest
            first, and the one that came.
        prompt_logprobs: per token of the prompt, with `SamplingParams.prompt_logprobs`: as
            `logprobs`; None for the first token, which nothing comes before.
        others: the further answers, with `SamplingParams.n`.
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
        """All answers to the prompt, this one first."""
        return [self, *self.others]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to a streamed answer.

    Attributes:
        text: text that became certain; the chunks' texts joined are the completion's text.
        token_ids: tokens of this step.
        accepted: per token, whether it came from the draft.
        pieces: (text, accepted) per token with text, for displays; joined they are `text`.
        completion: the whole answer, with the last chunk.
        logprobs: as in `Completion`, of the tokens of this step.
        origins: per token where it came from, a word of `paceline.core.origin.Origin`: "target",
            which is the bonus or a plain token, or "prompt", "output", "datastore", ...
        marks: per piece the token it belongs to; text that may become a stop string is held back,
            also beyond its step.
        outcome: of this step: the draft tree that was verified, and what the target said. None
            outside of an engine.
        step, forwards: steps and target forwards of the answer so far, prefill included; not what a
            preemption has repeated.
        prompt_logprobs: as in `Completion`, with the first chunk.
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
        """The chunk of a step.

        Args:
            written: the pieces of text that have become certain with it.
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
