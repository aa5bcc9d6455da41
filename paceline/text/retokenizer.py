"""Convert a growing text from one tokenizer's token ids to another's, and back."""

from __future__ import annotations

from typing import Any

from paceline.text.detokenizer import Detokenizer
from paceline.text.settings import MAX_TAIL_CHARACTERS, MIN_TAIL_CHARACTERS
from paceline.text.token_bytes import token_bytes

# Character before a text that continues another text. Without it, SentencePiece tokenizers would
# insert a space.
_ANCHOR = "\n"


class Retokenizer:
    """Converts between the token ids of a target and of its draft model.

    Args:
        target: Tokenizer of the target.
        draft: Tokenizer of the draft model. In both tokenizers, every token has a fixed spelling
            (`token_bytes`).
        target_rows: Number of rows in the target's LM head.
        draft_rows: Number of rows in the draft model's embedding.
    Attributes:
        draft_end: The draft model's end-of-sequence token; None if there is none.
    """

    def __init__(self, target: Any, draft: Any, target_rows: int, draft_rows: int) -> None:
        self.target, self._draft = target, draft
        self._target_rows, self._draft_rows = target_rows, draft_rows
        self._spellings = token_bytes(draft)
        self.draft_end: int | None = draft.eos_token_id

    def first_ids(self, text: str) -> list[int]:
        """Return the draft model's ids for the start of a text, with special tokens."""
        ids: list[int] = self._draft(text)["input_ids"]
        return ids[:-1] if len(ids) > 1 and ids[-1] == self.draft_end else ids

    def later_ids(self, text: str) -> list[int]:
        """Return the draft model's ids for a text that continues another text."""
        return _encode_after_anchor(self._draft, text)

    def readable(self, token_ids: list[int]) -> bool:
        """Return whether the draft model has an embedding for each id."""
        return max(token_ids, default=0) < self._draft_rows

    def target_ids(self, draft_ids: list[int]) -> list[int]:
        """Return the target's ids for a text that the draft model has drafted.

        The text ends before the first special token and before an incomplete character. An
        end-of-sequence token of the draft model becomes the target's.
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
    """Keeps the text of one request as token ids of the draft model.

    The ids of older text are final. Only the newest characters are tokenised again when tokens
    arrive, so the time per step does not depend on the length of the text.

    Args:
        retokenizer: Converter between the tokenizers.
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
        """Add the new tokens in `token_ids`; return the draft model's ids for the text."""
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
    """Return the token ids of a text that follows another text."""
    if not text:
        return []
    encoded = tokenizer(_ANCHOR + text, add_special_tokens=False, return_offsets_mapping=True)
    return [
        token
        for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        if begin >= len(_ANCHOR) and end > begin
    ]
