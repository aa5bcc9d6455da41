"""Define completions (finished answers) and the chunks of streamed answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.drafter import Outcome
from paceline.core.metrics import Stats
from paceline.core.origin import Origin
from paceline.parsing.events import AssistantMessage
from paceline.sampling.stream_writer import TokenMark, token_origins


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer to one prompt.

    Attributes:
        text: Text of the answer, cut before a stop string; "" if there is no tokenizer. The text
            directly continues the prompt, without a separator. An incomplete character at the end
            becomes U+FFFD.
        token_ids: Tokens of the answer, including an end-of-sequence token.
        finish_reason: "stop" (end-of-sequence, stop token or stop string) or "length".
        stats: Statistics of the request, such as its number of accepted draft tokens.
        logprobs: If `SamplingParams.logprobs` is set, a list with one mapping per token of the
            answer. Each mapping assigns log-probabilities to token ids. The log-probabilities are
            computed from the model's own logits, before any option changes the logits. A mapping
            starts with the most likely tokens, in descending order, followed by the chosen token.
            Among equally likely tokens, the lowest id comes first.
        prompt_logprobs: If `SamplingParams.prompt_logprobs` is set, a list with one mapping per
            token of the prompt, in the format of `logprobs`. The first entry is None, because no
            token precedes the first token.
        message: In a chat, the answer split into content, reasoning and tool calls; otherwise None.
        others: The additional answers, if `SamplingParams.n` is above 1.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    others: tuple[Completion, ...] = ()
    message: AssistantMessage | None = None

    @property
    def outputs(self) -> list[Completion]:
        """Return all answers to the prompt, starting with this one."""
        return [self, *self.others]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens and the text that one step added to a streamed answer.

    Attributes:
        text: Text that became final in this step. The texts of all chunks, joined together, are
            the completion's text.
        token_ids: Tokens from this step.
        accepted: For each token, whether the token is an accepted draft token.
        pieces: For display, one pair (text, accepted) for each token that has text. These texts,
            joined together, are `text`.
        completion: The finished answer, in the last chunk.
        logprobs: Log-probabilities of the tokens from this step, in the format of
            `Completion.logprobs`.
        origins: Source of each token, as a lower-case name from `paceline.core.origin.Origin`:
            "target" (the bonus token or a plainly decoded token), "prompt", "output", "datastore",
            ...
        marks: For each entry of `pieces`, the token that produced the text. The token may be from
            an earlier step, because the engine holds back text that may belong to a stop string.
        outcome: Verification result of this step, with the verified draft tree, or None.
        step: Number of steps so far for this answer, including prefill.
        forwards: Number of target forward passes so far for this answer, including prefill. A
            forward pass that is repeated after a preemption does not count again.
        prompt_logprobs: Log-probabilities of the prompt, in the first chunk only, in the format of
            `Completion.prompt_logprobs`.
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
        """Build the chunk of a streamed answer for one step.

        Args:
            outcome: Verification result of the step.
            written: Parts of the text that became final in this step, each with a mark of the token
                that produced the text.
            step: Number of steps so far for this answer.
            forwards: Number of target forward passes so far for this answer.
            completion: The finished answer, if this is the last chunk.
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
