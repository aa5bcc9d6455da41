"""Check the wording of docstrings and comments against the style rules.

python scripts/check_words.py [PATH ...]

Without paths, the script checks the folders that `[tool.check-words]` in pyproject.toml lists. It
reports docstrings whose first line is long, short or not imperative, sentences of more than 30
words, and words that the style rules ban. The exit status is 1 if the script reports anything.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from wording import checked_files, long_sentences, pattern

MAX_FIRST_LINE = 80
MIN_FIRST_WORDS = 3

# A summary that starts with one of these words describes something else than what the object does.
_WEAK_START = re.compile(
    r"^(Of|As|By|What|Where|Who|Which|That|Those|One|Whether|The same|Likewise|Not|How)\b"
)
_BANNED = pattern()
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(\"])")


def main(arguments: list[str]) -> int:
    """Check the files below the given or configured paths; return the exit status."""
    findings = [
        finding
        for path in checked_files(arguments, "check-words", ".py")
        for finding in check(path)
    ]
    print("\n".join(findings) or "The wording is clean.")
    return bool(findings)


def check(path: Path) -> list[str]:
    """Return one message per finding in a Python file."""
    text = path.read_text(encoding="utf-8")
    found = []
    for line, docstring in _docstrings(ast.parse(text)):
        first = docstring.split("\n", 1)[0]
        found += [f"{path}:{line}: {fault}: {first[:60]!r}" for fault in _summary_faults(first)]
        found += [f"{path}:{line}: {fault}" for fault in _prose_faults(docstring)]
    for line, comment in _comments(text):
        found += [f"{path}:{line}: {fault}" for fault in _prose_faults(comment)]
    return found


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a file; consecutive comment lines form one comment."""
    start, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith("#!"):
            continue
        line = token.start[0]
        if line != last + 1 and lines:
            yield start, " ".join(lines)
            lines = []
        if not lines:
            start = line
        lines.append(token.string.lstrip("# "))
        last = line
    if lines:
        yield start, " ".join(lines)


def _summary_faults(first: str) -> Iterator[str]:
    if len(first) > MAX_FIRST_LINE:
        yield f"first line of {len(first)} characters, at most {MAX_FIRST_LINE}"
    if len(first.split()) < MIN_FIRST_WORDS:
        yield f"first line of {len(first.split())} words, at least {MIN_FIRST_WORDS}"
    weak = _WEAK_START.match(first)
    if weak:
        yield f"first line starts with {weak[0]!r}"


def _prose_faults(text: str) -> Iterator[str]:
    prose = re.sub(r"`[^`]*`", "CODE", text)
    for hit in _BANNED.finditer(prose):
        yield f"banned: {hit[0]!r}"
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*] |\w+: |\d+\. )", prose):
        yield from long_sentences(" ".join(paragraph.split()), _SENTENCE_END)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
