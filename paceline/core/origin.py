"""Where a token came from: said by the target itself, or guessed, and of what the guess was
made.
"""

from __future__ import annotations

from enum import IntEnum


class Origin(IntEnum):
    """Where a token came from; `word` is what people and programs outside are told.

    Attributes:
        TARGET: no guess: the target chose it. DRAFT: a guess of a drafter that says no more.
        PROMPT, OUTPUT, DATASTORE: it followed the same tokens in the prompt, in the answer so far,
            or in a datastore.
        RECYCLED: the target once named it as likely there. WINDOW: guessed by the target for a
            place ahead.
        POOL: a phrase kept from earlier steps or answers. MODEL: said by a draft model.
        DRAFT_HEAD: predicted by the draft head from the target's hidden state.
    """

    TARGET = 0
    DRAFT = 1
    PROMPT = 2
    OUTPUT = 3
    DATASTORE = 4
    RECYCLED = 5
    WINDOW = 6
    POOL = 7
    MODEL = 8
    DRAFT_HEAD = 9

    @property
    def word(self) -> str:
        """Its name in small letters."""
        return self.name.lower()
