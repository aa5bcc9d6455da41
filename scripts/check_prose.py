"""Check the wording of the documentation and of the command-line help.

python scripts/check_prose.py [PATH ...]

Without paths, the script checks the pages that `[tool.check-prose]` in pyproject.toml lists, and
the help of every command. It reports long sentences, banned words, commit hashes, crowded
paragraphs, long table cells, empty table headings and links without a meaning. It leaves out code,
comments, and the tables that `scripts/update_benchmarks.py` writes. The exit status is 1 if the
script reports anything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from wording import checked_files, long_sentences, pattern

MAX_NUMBERS = 4  # in a paragraph
MAX_CELL_WORDS = 12
MAX_SUMMARY_WORDS = 12  # of a command

_LEFT_OUT = re.compile(
    r"\A---\n.*?\n---\n|```.*?```|<!-- table of .*?<!-- end of table -->|<!--.*?-->", re.DOTALL
)
_BANNED = pattern(
    "behind", "dear(er)?", "used to be", r"(has|had) (\d|[01]\.)\S*x", "out of a wheel"
)
_WEAK_START = re.compile(r"^[*(]*(Where|What|Who|Whoever|Whatever|Of|Behind)\b")
_HASH = re.compile(r"(?<![\w/.-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)([0-9a-f]{7}|[0-9a-f]{40})(?!\w)")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_VAGUE_LINKS = {"page", "the page", "here", "this", "link"}
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,.]*(?!\w)")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`\"(])")
_ITEM = re.compile(r"^([-*>]|\d+\.)\s+")


def main(arguments: list[str]) -> int:
    """Check the given pages, or all pages and the help; return the exit status."""
    findings = [
        finding
        for path in checked_files(arguments, "check-prose", ".md")
        for finding in check(path)
    ]
    if not arguments:
        findings += check_help()
    print("\n".join(findings) or "The prose is clean.")
    return bool(findings)


def check(path: Path) -> list[str]:
    """Return one message per finding in a Markdown file."""
    text = _LEFT_OUT.sub(lambda part: "\n" * part[0].count("\n"), path.read_text(encoding="utf-8"))
    found = [
        f"{path}:{line}: {fault}"
        for line, block in _blocks(text)
        for fault in _paragraph_faults(block)
    ]
    return found + [f"{path}:{line}: {fault}" for line, fault in _table_faults(text)]


def check_help() -> list[str]:
    """Return one message per finding in the help of the commands."""
    from docs_command_line import help_texts  # imports every command

    found = []
    for command, name, text in help_texts():
        faults = list(_help_faults(text))
        words = len(text.split("\n\n", 1)[0].split())
        if not name and words > MAX_SUMMARY_WORDS:
            faults.append(f"summary of {words} words")
        found += [f"paceline {command} {name}".strip() + f": {fault}" for fault in faults]
    return found


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs and list items with the number of their first line."""
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        plain = line.strip()
        skipped = not plain or plain.startswith(("#", "|", ":::", "<"))
        if lines and (skipped or _ITEM.match(plain)):
            yield start, " ".join(lines)
            lines = []
        if not skipped:
            start = start if lines else number
            lines.append(_ITEM.sub("", plain, count=1))


def _paragraph_faults(block: str) -> Iterator[str]:
    for link in _LINK.finditer(block):
        if link[1].lower() in _VAGUE_LINKS:
            yield f"link with the text {link[1]!r}"
    prose = _LINK.sub(r"\1", block)
    yield from (f"commit {commit[0]}" for commit in _HASH.finditer(prose))
    bare = re.sub(r"`[^`]*`", "CODE", prose)
    yield from _help_faults(bare)
    for sentence in _SENTENCE_END.split(bare):
        weak = _WEAK_START.match(sentence)
        if weak and not sentence.rstrip("* ").endswith("?"):
            yield f"sentence starts with {weak[1]!r}"
    numbers = len(_NUMBER.findall(bare))
    if numbers > MAX_NUMBERS:
        yield f"{numbers} numbers in a paragraph"


def _help_faults(text: str) -> Iterator[str]:
    """Yield the faults that hold for pages and for help texts."""
    prose = re.sub(r"`[^`]*`", "CODE", text)
    yield from (f"banned: {hit[0]!r}" for hit in _BANNED.finditer(prose))
    for paragraph in prose.split("\n\n"):
        yield from long_sentences(paragraph, _SENTENCE_END)


def _table_faults(text: str) -> Iterator[tuple[int, str]]:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            continue
        cells = [_LINK.sub(r"\1", cell).strip() for cell in line.strip("|").split("|")]
        is_head = number < len(lines) and re.match(r"\|[-:| ]+\|$", lines[number])
        if is_head and not all(cells):
            yield number, "empty table heading"
        longest = max(len(cell.split()) for cell in cells)
        if longest > MAX_CELL_WORDS:
            yield number, f"table cell of {longest} words"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
