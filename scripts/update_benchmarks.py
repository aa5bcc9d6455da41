"""Write docs/benchmarks.md from the JSON files of `paceline bench`, so that every figure there was measured.

The picture of a paper is the PNG file of the same name beside its JSON file.

python scripts/update_benchmarks.py docs/results/*.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paceline.bench import markdown, paper_markdown, read_json, read_paper_json

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MARK = "<!-- generated below by scripts/update_benchmarks.py -->\n"


def main(paths: list[str]) -> None:
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    sections = [section(Path(path)) for path in sorted(paths)]
    PAGE.write_text(head + MARK + "\n" + "\n\n".join(section.strip() for section in sections) + "\n", encoding="utf-8")


def section(path: Path) -> str:
    if "paper" not in json.loads(path.read_text(encoding="utf-8")):
        return markdown(read_json(path))
    picture = path.resolve().with_suffix(".png")
    return paper_markdown(read_paper_json(path), str(picture.relative_to(PAGE.parent)) if picture.exists() else None)


if __name__ == "__main__":
    main(sys.argv[1:])
