"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as ListLike
from itertools import islice
from typing import Any

from paceline.serve.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

_LEAST = -9999.0  # stands for minus infinity, which JSON has not; as in vLLM
Found = ListLike[Mapping[int, float]]


class Spelling:
    """The texts of single tokens. Half of a character is the replacement character, special tokens are as they are written."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, token: int) -> str:
        """The text of a token."""
        return str(self._tokenizer.decode([token]))


def of_completion(spell: Spelling, token_ids: ListLike[int], found: Found, offset: int) -> CompletionLogprobs:
    """Those of tokens of a completion.

    Args:
        found: as `Completion.logprobs`.
        offset: characters before the first of the tokens; each has its own added to it.
    """
    tokens = [spell(token) for token in token_ids]
    ends = [offset]
    for text in tokens:
        ends.append(ends[-1] + len(text))
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[_finite(place[token]) for token, place in zip(token_ids, found, strict=True)],
        top_logprobs=[_by_text(spell, place) for place in found],
        text_offset=ends[:-1],
    )


def of_chat(spell: Spelling, token_ids: ListLike[int], found: Found, top: int) -> ChatLogprobs:
    """Those of tokens of a chat's answer, with the `top` likeliest in each place."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_top(spell, token, place[token]).model_dump(),
                top_logprobs=[_top(spell, *pair) for pair in islice(place.items(), top)],
            )
            for token, place in zip(token_ids, found, strict=True)
        ]
    )


def _by_text(spell: Spelling, place: Mapping[int, float]) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for token, value in place.items():
        by_text.setdefault(spell(token), _finite(value))  # of tokens that are spelled alike, the likeliest
    return by_text


def _top(spell: Spelling, token: int, value: float) -> TopLogprob:
    text = spell(token)
    return TopLogprob(token=text, logprob=_finite(value), bytes=list(text.encode()))


def _finite(value: float) -> float:
    return max(value, _LEAST)
