"""Find the token that completes a stop string, and cut the text before the string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.text.detokenizer import Decoder, Detokenizer


class TextDelta(NamedTuple):
    """The text that one token adds to an answer.

    Attributes:
        shown: Text that the user sees.
        full: The same text, including special tokens that the user does not see.
    """

    shown: str
    full: str


class DeltaDecoder:
    """Decodes the tokens of an answer to visible text and to full text.

    The full text contains all special tokens.

    Args:
        tokenizer: Tokenizer of the model.
        prompt_ids: Tokens before the answer.
        skip_special_tokens: Whether to omit special tokens from the visible text.
        full: Whether to decode the full text. If False, `TextDelta.full` equals `TextDelta.shown`.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool,
        full: bool = True,
    ) -> None:
        self._shown = Detokenizer(tokenizer, prompt_ids, skip_special_tokens)
        hides = full and skip_special_tokens
        self._full = (
            Detokenizer(tokenizer, prompt_ids, skip_special_tokens=False) if hides else None
        )

    def push(self, token: int) -> TextDelta:
        """Add a token, and return the text that later tokens cannot change."""
        shown = self._shown.push(token)
        return TextDelta(shown, shown if self._full is None else self._full.push(token))

    def rest(self) -> TextDelta:
        """Return the text that remains if the answer ends here."""
        shown = self._shown.rest().text
        return TextDelta(shown, shown if self._full is None else self._full.rest().text)


class StopStrings:
    """Searches one answer for stop strings.

    The answer ends with the token that completes a stop string. As in transformers, a stop string
    may occur in the text with special tokens or in the text without them. A stop string must begin
    in the answer, not in the prompt.

    Args:
        stop: Stop strings; at least one.
        tokenizer: Tokenizer of the model.
        prompt_ids: Tokens before the answer.
        skip_special_tokens: Whether to omit special tokens from the visible text.
    """

    def __init__(
        self,
        stop: Sequence[str],
        tokenizer: Decoder,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._stop = tuple(stop)
        # A stop string may begin this many characters before the last character.
        self._before = max(map(len, stop)) - 1
        self._tokenizer, self._prompt_ids, self._skips = (
            tokenizer,
            list(prompt_ids),
            skip_special_tokens,
        )
        self._begin()

    def _begin(self) -> None:
        self._texts = self.texts()
        self._answer: list[int] = []  # answer tokens searched so far
        self._stop_length: int | None = None  # answer tokens up to the first stop string
        self._tail = TextDelta("", "")

    def texts(self) -> DeltaDecoder:
        """Create an empty decoder for the text of the answer."""
        return DeltaDecoder(self._tokenizer, self._prompt_ids, self._skips)

    def ends(self, token_ids: Sequence[int], run: list[int]) -> bool:
        """Return whether the last token of `run` completes a stop string.

        Args:
            token_ids: Tokens of the prompt and of the answer before `run`. The method decodes them
                again only if the answer differs from that of the previous call.
            run: Tokens that the request would append.
        """
        done = len(token_ids) - len(self._prompt_ids)
        known = self._answer[done : done + len(run)]
        if len(self._answer) < done or known != run[: len(known)]:
            self._begin()
            self._add(token_ids[len(self._prompt_ids) :])
            known = []
        self._add(run[len(known) :])
        return self._stop_length is not None and self._stop_length <= done + len(run)

    def _add(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self._answer.append(token)
            completes = self._completes(self._texts.push(token), self._texts.rest())
            if completes and self._stop_length is None:
                self._stop_length = len(self._answer)

    def _completes(self, delta: TextDelta, rest: TextDelta) -> bool:
        shown, full = self._tail.shown + delta.shown, self._tail.full + delta.full
        has_stop = self._in(shown + rest.shown) or (full != shown and self._in(full + rest.full))
        self._tail = TextDelta(
            shown[max(0, len(shown) - self._before) :], full[max(0, len(full) - self._before) :]
        )
        return has_stop

    def _in(self, text: str) -> bool:
        return any(stop in text for stop in self._stop)

    def cut(self, deltas: Sequence[TextDelta]) -> int | None:
        """Return the number of visible characters before the first stop string, or None.

        Args:
            deltas: Text of the answer so far, per token.
        """
        shown, full = _joined(deltas)
        indices = [index for index in map(shown.find, self._stop) if index >= 0]
        if shown != full:
            indices += [
                _in_shown(deltas, index) for index in map(full.find, self._stop) if index >= 0
            ]
        return min(indices, default=None)

    def certain(self, deltas: Sequence[TextDelta]) -> int:
        """Return how many characters of the full text precede any possible stop string.

        Args:
            deltas: Text of the answer so far, per token. It does not contain a stop string.
        """
        shown, full = _joined(deltas)
        certain = len(full) - self.held_back(full)
        if shown != full:
            certain = min(certain, _in_full(deltas, len(shown) - self.held_back(shown)))
        return certain

    def held_back(self, text: str) -> int:
        """Return how many trailing characters of `text` may be the start of a stop string."""
        for size in range(min(self._before, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0


def _joined(deltas: Sequence[TextDelta]) -> tuple[str, str]:
    return "".join(delta.shown for delta in deltas), "".join(delta.full for delta in deltas)


def _in_full(deltas: Sequence[TextDelta], index: int) -> int:
    """Convert an index in the visible text to an index in the full text.

    An index beyond the visible text becomes the length of the full text.
    """
    start = 0
    for shown, full in deltas:
        if index < len(shown):
            return start + max(0, len(full) - len(shown) + index)
        index, start = index - len(shown), start + len(full)
    return start


def _in_shown(deltas: Sequence[TextDelta], index: int) -> int:
    """Return the number of visible characters before `index` in the full text."""
    count = 0
    for shown, full in deltas:
        if index < len(full):
            return count + min(len(shown), max(0, index - len(full) + len(shown)))
        index, count = index - len(full), count + len(shown)
    return count
