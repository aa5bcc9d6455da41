"""Format log-probabilities as in OpenAI's completion and chat responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from paceline.serve.protocol_settings import MIN_LOGPROB
from paceline.serve.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from paceline.text.detokenizer import Detokenizer, TokenText
from paceline.text.token_bytes import context_token_ids

TokenLogprobs = Sequence[Mapping[int, float]]


class Scored(NamedTuple):
    """A token, converted to text, with its log-probability."""

    token: TokenText
    value: float


class Position(NamedTuple):
    """The chosen token at one position of an answer, and the position's top-k tokens."""

    chosen: Scored
    top: list[Scored]


class AnswerSpelling:
    """Converts the tokens of one answer to text, in order.

    The texts of all tokens concatenate to the answer's text. If several tokens encode one
    character, the last of them receives the character as its text, as in vLLM. Each token keeps its
    own bytes. Hidden special tokens have neither text nor bytes. Top-k tokens that the model did
    not choose are converted as if the model had chosen them.

    Args:
        tokenizer: Tokenizer of the model.
        prompt_ids: Token ids before the answer; None (default) if they are unknown.
        skip_special_tokens: Whether to hide special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int] | None = None,
        skip_special_tokens: bool = True,
    ) -> None:
        before = context_token_ids(tokenizer) if prompt_ids is None else prompt_ids
        self._detokenizer = Detokenizer(tokenizer, before, skip_special_tokens)

    def spell(
        self, token_ids: Sequence[int], logprobs: TokenLogprobs, last: bool
    ) -> list[Position]:
        """Convert the next tokens of the answer to text, together with the top-k tokens.

        Args:
            token_ids: Next token ids of the answer.
            logprobs: Top-k log-probabilities at each position, as in `Completion.logprobs`.
            last: Whether the answer ends with `token_ids`. If so, an incomplete character at the
                end appears as U+FFFD.
        """
        positions = [
            self._position(token, token_logprobs)
            for token, token_logprobs in zip(token_ids, logprobs, strict=True)
        ]
        if last:
            rest = self._detokenizer.rest()
            self._detokenizer.flush()
            if positions and rest.text:
                positions[-1] = _with(positions[-1], rest)
        return positions

    def _position(self, token: int, logprobs: Mapping[int, float]) -> Position:
        others = {other: self._detokenizer.peek(other) for other in logprobs if other != token}
        chosen = self._detokenizer.spell(token)
        return Position(
            Scored(chosen, _finite(logprobs[token])),
            [
                Scored(others.get(other, chosen), _finite(value))
                for other, value in logprobs.items()
            ],
        )


def completion_logprobs(
    spelling: AnswerSpelling,
    token_ids: Sequence[int],
    logprobs: TokenLogprobs,
    offset: int,
    last: bool = True,
) -> CompletionLogprobs:
    """Format the log-probabilities of a completion, or of its next tokens.

    Args:
        spelling: Object that converts the completion's tokens to text.
        token_ids: Next token ids of the completion.
        logprobs: Top-k log-probabilities at each position of `token_ids`.
        offset: Number of characters before the first token of `token_ids`.
        last: Whether the completion ends with `token_ids`.
    """
    positions = spelling.spell(token_ids, logprobs, last)
    tokens = [position.chosen.token.text for position in positions]
    ends = [offset]
    for text in tokens:
        ends.append(ends[-1] + len(text))
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[position.chosen.value for position in positions],
        top_logprobs=[_by_text(position) for position in positions],
        text_offset=ends[:-1],
    )


def chat_logprobs(
    spelling: AnswerSpelling,
    token_ids: Sequence[int],
    logprobs: TokenLogprobs,
    top: int,
    last: bool = True,
) -> ChatLogprobs:
    """Format the log-probabilities of a chat answer, or of its next tokens.

    Args:
        spelling: Object that converts the answer's tokens to text.
        token_ids: Next token ids of the answer.
        logprobs: Top-k log-probabilities at each position of `token_ids`.
        top: Number of top-k tokens to report per position.
        last: Whether the answer ends with `token_ids`.
    """
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_top(position.chosen).model_dump(),
                top_logprobs=[_top(scored) for scored in islice(position.top, top)],
            )
            for position in spelling.spell(token_ids, logprobs, last)
        ]
    )


def _with(position: Position, rest: TokenText) -> Position:
    """Append the remaining text of an answer to the answer's last token."""
    text, data, _ = position.chosen.token
    chosen = TokenText(text + rest.text, data + rest.data)
    top = [
        Scored(chosen, scored.value) if scored.token is position.chosen.token else scored
        for scored in position.top
    ]
    return Position(Scored(chosen, position.chosen.value), top)


def _by_text(position: Position) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for token, value in position.top:
        text = (
            token.text if token.complete or token is position.chosen.token else _escaped(token.data)
        )
        by_text.setdefault(text, value)  # of tokens with the same text, keep the most likely
    return by_text


def _escaped(data: bytes) -> str:
    """Write the bytes of an incomplete character as OpenAI does: "bytes:\\xNN..."."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _top(scored: Scored) -> TopLogprob:
    return TopLogprob(token=scored.token.text, logprob=scored.value, bytes=list(scored.token.data))


def _finite(value: float) -> float:
    return max(value, MIN_LOGPROB)
