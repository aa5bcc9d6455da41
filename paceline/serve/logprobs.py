"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from paceline.serve.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from paceline.text.detokenizer import Detokenizer, TokenText
from paceline.text.token_bytes import any_text

_LEAST = -9999.0  # stands for minus infinity, which JSON has not; as in vLLM
Found = Sequence[Mapping[int, float]]


class Scored(NamedTuple):
    """A token with its log-probability."""

    token: TokenText
    value: float


class Place(NamedTuple):
    """The token that came in one place of an answer, and the likeliest there, likeliest first."""

    came: Scored
    likely: list[Scored]


class Spelling:
    """Spells the tokens of one answer, in order.

    The texts of the tokens joined are the answer's text, their bytes are the text in UTF-8. A
    character of several tokens is the text of its last one, as in vLLM; each has its own bytes. A
    special token that the answer hides has neither. Other likely tokens are spelled as if they had
    come.

    Args:
        tokenizer: of the model.
        prompt_ids: the tokens before the answer; None = some text that is not known.
        skip_special_tokens: the answer hides special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int] | None = None,
        skip_special_tokens: bool = True,
    ) -> None:
        before = any_text(tokenizer) if prompt_ids is None else prompt_ids
        self._detokenizer = Detokenizer(tokenizer, before, skip_special_tokens)

    def places(self, token_ids: Sequence[int], found: Found, last: bool) -> list[Place]:
        """Spell the next tokens.

        Args:
            found: as `Completion.logprobs`.
            last: the answer ends with them. An unfinished character belongs to its last token then,
                as U+FFFD.
        """
        places = [
            self._place(token, likely) for token, likely in zip(token_ids, found, strict=True)
        ]
        if last:
            rest = self._detokenizer.rest()
            self._detokenizer.flush()
            if places and rest.text:
                places[-1] = _with(places[-1], rest)
        return places

    def _place(self, token: int, likely: Mapping[int, float]) -> Place:
        others = {other: self._detokenizer.peek(other) for other in likely if other != token}
        came = self._detokenizer.spell(token)
        return Place(
            Scored(came, _finite(likely[token])),
            [Scored(others.get(other, came), _finite(value)) for other, value in likely.items()],
        )


def of_completion(
    spelling: Spelling, token_ids: Sequence[int], found: Found, offset: int, last: bool = True
) -> CompletionLogprobs:
    """Return those of tokens of a completion.

    Args:
        found, last: as `Spelling.places`.
        offset: characters before the first of the tokens; each has its own added to it.
    """
    places = spelling.places(token_ids, found, last)
    tokens = [place.came.token.text for place in places]
    ends = [offset]
    for text in tokens:
        ends.append(ends[-1] + len(text))
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[place.came.value for place in places],
        top_logprobs=[_by_text(place) for place in places],
        text_offset=ends[:-1],
    )


def of_chat(
    spelling: Spelling, token_ids: Sequence[int], found: Found, top: int, last: bool = True
) -> ChatLogprobs:
    """Return those of tokens of a chat's answer, with the `top` likeliest in each place.

    Args:
        found, last: as `Spelling.places`.
    """
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_top(place.came).model_dump(),
                top_logprobs=[_top(one) for one in islice(place.likely, top)],
            )
            for place in spelling.places(token_ids, found, last)
        ]
    )


def _with(place: Place, rest: TokenText) -> Place:
    """A place whose token has the rest of the text, too."""
    text, data, _ = place.came.token
    came = TokenText(text + rest.text, data + rest.data)
    likely = [
        Scored(came, one.value) if one.token is place.came.token else one for one in place.likely
    ]
    return Place(Scored(came, place.came.value), likely)


def _by_text(place: Place) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for token, value in place.likely:
        text = token.text if token.whole or token is place.came.token else _escaped(token.data)
        by_text.setdefault(text, value)  # of tokens that are spelled alike, the likeliest
    return by_text


def _escaped(data: bytes) -> str:
    """How OpenAI writes a token that ends within a character."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _top(one: Scored) -> TopLogprob:
    return TopLogprob(token=one.token.text, logprob=one.value, bytes=list(one.token.data))


def _finite(value: float) -> float:
    return max(value, _LEAST)
