"""Convert token ids between a target and a draft model with a different tokenizer."""

from __future__ import annotations

from typing import Any

from paceline.text.detokenizer import Detokenizer
from paceline.text.settings import MAX_TAIL_CHARACTERS, MIN_TAIL_CHARACTERS
from paceline.text.token_bytes import token_bytes

# This character precedes a text that continues another text. Without the character, SentencePiece
# tokenizers would insert a space.
_ANCHOR = "\n"


class Retokenizer:
    """Converts between the token ids of a target and of its draft model.

    In both tokenizers, every token must have a fixed spelling; see `token_bytes`.

    Args:
        target: Tokenizer of the target.
        draft: Tokenizer of the draft model.
        target_rows: Number of rows in the target's LM head. A draft ends before the first token id
            without a row.
        draft_rows: Number of rows in the draft model's embedding.
    Attributes:
        draft_end: The draft model's end-of-sequence token. None if the tokenizer does not have one.
    """

    def __init__(self, target: Any, draft: Any, target_rows: int, draft_rows: int) -> None:
        self.target, self._draft = target, draft
        self._target_rows, self._draft_rows = target_rows, draft_rows
        self._spellings = token_bytes(draft)
        self.draft_end: int | None = draft.eos_token_id

    def first_ids(self, text: str) -> list[int]:
        """Return draft-model ids for the start of a text, with initial special tokens."""
        ids: list[int] = self._draft(text)["input_ids"]
        return ids[:-1] if len(ids) > 1 and ids[-1] == self.draft_end else ids

    def later_ids(self, text: str) -> list[int]:
        """Return the draft model's token ids for a text that continues another text."""
        return _encode_after_anchor(self._draft, text)

    def readable(self, token_ids: list[int]) -> bool:
        """Return whether the draft model has an embedding for every token id."""
        return max(token_ids, default=0) < self._draft_rows

    def target_ids(self, draft_ids: list[int]) -> list[int]:
        """Convert the draft model's draft tokens to the target's token ids.

        The conversion stops at the first special token, and omits an incomplete character at the
        end. If that special token is the draft model's end-of-sequence token, the result ends with
        the target's end-of-sequence token.
        """
        assert self._spellings is not None, "`map_tokens` rejects such tokenizers"
        data, ends = b"", False
        for token in draft_ids:
            spelling = self._spellings[token]
            if spelling.special or token == self.draft_end:
                ends = token == self.draft_end
                break
            data += spelling.data
        ids = _encode_after_anchor(self.target, data.decode(errors="ignore"))
        if ends and self.target.eos_token_id is not None:
            ids.append(self.target.eos_token_id)
        known = next((n for n, token in enumerate(ids) if token >= self._target_rows), len(ids))
        return ids[:known]


class RetokenizedText:
    """Stores the text of one request as token ids of the draft model.

    The ids of older text are final. When the target emits tokens, only the last few hundred
    characters are tokenised again, so the time per step does not depend on the length of the text.

    Args:
        retokenizer: Converter between the two tokenizers.
    Attributes:
        complete: Whether the text ends with a complete character.
        final: Number of draft-model ids that later tokens cannot change.
    """

    def __init__(self, retokenizer: Retokenizer) -> None:
        self._retokenizer = retokenizer
        self._detokenizer = Detokenizer(retokenizer.target, (), skip_special_tokens=False)
        self._num_tokens = 0
        self._final_ids: list[int] = []
        self._tail = ""
        self.complete = True

    @property
    def final(self) -> int:
        """Return the number of draft-model ids that later tokens cannot change."""
        return len(self._final_ids)

    def update(self, token_ids: list[int]) -> list[int]:
        """Add the request's new tokens, and return its text as draft-model ids.

        Args:
            token_ids: All of the request's tokens, including those from earlier calls.
        """
        for token in token_ids[self._num_tokens :]:
            text = self._detokenizer.push(token)
            self.complete = bool(text)
            self._tail += text
        self._num_tokens = len(token_ids)
        if len(self._tail) > MAX_TAIL_CHARACTERS:
            border = self._tail.rfind(" ", 1, len(self._tail) - MIN_TAIL_CHARACTERS)
            if border > 0:
                self._final_ids = [*self._final_ids, *self._encode(self._tail[:border])]
                self._tail = self._tail[border:]
        return [*self._final_ids, *self._encode(self._tail)]

    def _encode(self, text: str) -> list[int]:
        if self._final_ids:
            return self._retokenizer.later_ids(text)
        return self._retokenizer.first_ids(text)


def _encode_after_anchor(tokenizer: Any, text: str) -> list[int]:
    """Encode, without special tokens, a text that continues another text."""
    if not text:
        return []
    encoded = tokenizer(_ANCHOR + text, add_special_tokens=False, return_offsets_mapping=True)
    return [
        token
        for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        if begin >= len(_ANCHOR) and end > begin
    ]
