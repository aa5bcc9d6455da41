"""Name the possible sources of a token."""

from __future__ import annotations

from enum import IntEnum


class Origin(IntEnum):
    """Source of a token.

    Attributes:
        TARGET: Chosen by the target; not a draft token.
        DRAFT: Proposed by a drafter that does not name a source.
        PROMPT: Copied from the prompt, where the token follows a match of the newest tokens.
        OUTPUT: Copied from the answer so far, where the token follows a match of the newest
            tokens.
        DATASTORE: Copied from a datastore, where the token follows a match of the newest tokens.
        RECYCLED: Taken from the cache of the target's top tokens (Token Recycling).
        WINDOW: Taken from a lookahead window, in which the target predicts later positions.
        POOL: Taken from a pool of n-grams from earlier steps or answers.
        MODEL: Predicted by a draft model.
        DRAFT_HEAD: Predicted by the draft head from the target's hidden state.
        GRAMMAR: The only token that the request's grammar allows at this position.
        PREDICTION: Taken from the caller's predicted text.
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
    GRAMMAR = 10
    PREDICTION = 11

    @property
    def word(self) -> str:
        """Return the origin's name in lower case, as shown in streams and traces."""
        return self.name.lower()
