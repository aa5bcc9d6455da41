"""Convert a stream of tokens to text, and cut the text at the first stop string.

The writer delays text that may begin a stop string, and text that later tokens may still change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin
from paceline.text.stop_strings import DeltaDecoder, StopStrings, TextDelta


class TokenMark(NamedTuple):
    """The token that produced a fragment of text.

    Attributes:
        step: Step of the answer that produced the token, starting from 1.
        token_index: Index of the token among the new tokens of that step.
        origin: Source that proposed the token, such as a draft head or the target.
    """

    step: int
    token_index: int
    origin: Origin


class StreamWriter:
    """Converts the tokens of a streamed answer to text.

    Args:
        tokenizer: The model's tokenizer. None if the stream has no text.
        prompt_ids: Token ids of the prompt.
        stop: Stop strings. The text ends before the first stop string that occurs.
        skip_special_tokens: Whether to omit special tokens from the text.
    Attributes:
        step: Number of steps written.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        stop: StopStrings | None,
        skip_special_tokens: bool = True,
    ) -> None:
        self._texts: DeltaDecoder | None = None
        if tokenizer is not None:
            self._texts = (
                DeltaDecoder(tokenizer, prompt_ids, skip_special_tokens, full=False)
                if stop is None
                else stop.texts()
            )
        self._stop = stop
        self._held: list[tuple[TextDelta, TokenMark]] = []  # text that may begin a stop string
        self._returned: list[str] = []
        self.step = 0

    @property
    def text(self) -> str:
        """The text returned so far."""
        return "".join(self._returned)

    def write(
        self, token_ids: list[int], origins: list[Origin], last: bool
    ) -> list[tuple[str, TokenMark]]:
        """Add the tokens of a step, and return the text that later tokens cannot change.

        Args:
            token_ids: New tokens of the step.
            origins: Source of each token.
            last: Whether the answer ends with this step.
        Returns:
            Fragments of text, each with the token that produced it.
        """
        self.step += 1
        if self._texts is None:
            return []
        deltas = self._held
        for index, (token, origin) in enumerate(zip(token_ids, origins, strict=True)):
            deltas.append((self._texts.push(token), TokenMark(self.step, index, origin)))
        if last:
            deltas.append(
                (
                    self._texts.rest(),
                    TokenMark(self.step, max(0, len(token_ids) - 1), Origin.TARGET),
                )
            )
        certain, self._held = self._split_final(deltas, last)
        written = [(delta.shown, mark) for delta, mark in certain if delta.shown]
        self._returned += [text for text, _ in written]
        return written

    def _split_final(
        self, deltas: list[tuple[TextDelta, TokenMark]], last: bool
    ) -> tuple[list[tuple[TextDelta, TokenMark]], list[tuple[TextDelta, TokenMark]]]:
        """Split the fragments into final text and text that must wait for later tokens."""
        if self._stop is None:
            return deltas, []
        texts = [delta for delta, _ in deltas]
        return (
            (_cut(deltas, self._stop.cut(texts)), [])
            if last
            else _split(deltas, self._stop.certain(texts))
        )


def token_origins(outcome: Outcome) -> list[Origin]:
    """Return the source of each new token of a step."""
    known = outcome.tree.origins
    drafted = [Origin.DRAFT if known is None else Origin(known[node]) for node in outcome.accepted]
    new = len(outcome.new_token_ids)
    return [*drafted[:new], *[Origin.TARGET] * (new - len(drafted))]


def _split(
    deltas: list[tuple[TextDelta, TokenMark]], length: int
) -> tuple[list[tuple[TextDelta, TokenMark]], list[tuple[TextDelta, TokenMark]]]:
    """Split fragments of text after `length` characters of the full text.

    If the split is within a fragment, both results contain a part of it, with the same token.
    """
    head, tail = [], []
    for delta, mark in deltas:
        shown, full = delta
        if length <= 0:
            tail.append((delta, mark))
        elif length >= len(full):
            head.append((delta, mark))
        else:
            num_shown = max(0, length - len(full) + len(shown))
            head.append((TextDelta(shown[:num_shown], full[:length]), mark))
            tail.append((TextDelta(shown[num_shown:], full[length:]), mark))
        length -= len(full)
    return head, tail


def _cut(
    deltas: list[tuple[TextDelta, TokenMark]], length: int | None
) -> list[tuple[TextDelta, TokenMark]]:
    """Cut fragments after `length` visible characters; None means no limit."""
    if length is None:
        return deltas
    result = []
    for delta, mark in deltas:
        result.append((TextDelta(delta.shown[: max(0, length)], ""), mark))
        length -= len(delta.shown)
    return result
