"""Word list and sentence limit that the checks of code and documentation share."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_SENTENCE_WORDS = 30
BANNED = (
    r"fore(see|sees|seen|saw|tells?|told|sight)|likewise|learnt|whoever|by turns|afresh|anew"
    r"|come true|came true|goes on|go on|going on|went on|of (ours|its own|their own|our own)"
    r"|(is|are|was|were|be|been) (told|asked|said)|beside|so (many|long) (a |an )?\w+ (as|that)"
    r"|in place of|pays off|nowhere else|what is said"
)


def pattern(*more: str) -> re.Pattern[str]:
    """Return a pattern of the banned words, and of further ones."""
    return re.compile(rf"\b({'|'.join([BANNED, *more])})\b", re.IGNORECASE)


def long_sentences(text: str, sentence_end: re.Pattern[str]) -> Iterator[str]:
    """Yield a message for each sentence of a paragraph that is too long.

    Args:
        text: Paragraph without line breaks.
        sentence_end: Pattern between two sentences.
    """
    for sentence in sentence_end.split(text):
        words = len(sentence.split())
        if words > MAX_SENTENCE_WORDS and not re.search(r"[|=]{2}|->.*->", sentence):
            yield f"sentence of {words} words: {sentence[:60]!r}"
