"""Name the sources that a token can come from."""

from __future__ import annotations

from enum import IntEnum


class Origin(IntEnum):
    """Enumerate the sources of tokens.

    Attributes:
        TARGET: Chosen by the target; not a draft token.
        DRAFT: Proposed by a drafter that names no source.
        PROMPT: Followed the same tokens in the prompt.
        OUTPUT: Followed the same tokens in the answer so far.
        DATASTORE: Followed the same tokens in a datastore.
        RECYCLED: Among the target's cached top tokens (Token Recycling).
        WINDOW: From a lookahead window, computed by the target for a later position.
        POOL: From a pool of n-grams from earlier steps or answers.
        MODEL: Predicted by a draft model.
        DRAFT_HEAD: Predicted by the draft head from the target's hidden state.
        GRAMMAR: The only continuation that the request's grammar allows.
        PREDICTION: From the text that the caller predicted.
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
        """Return the lower-case name shown in streams and traces."""
        return self.name.lower()
