"""Share the word list, sentence limit and file search of the wording checks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

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


def checked_files(arguments: list[str], table: str, suffix: str) -> Iterator[Path]:
    """Yield the files to check, those of a folder in order.

    Args:
        arguments: Files and folders; none = the `paths` of the table.
        table: Table of a check in pyproject.toml, such as "check-words".
        suffix: Suffix of the files in a folder, such as ".py".
    """
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    for path in map(Path, arguments or settings["tool"][table]["paths"]):
        yield from sorted(path.rglob(f"*{suffix}")) if path.is_dir() else [path]


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
