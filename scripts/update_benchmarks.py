"""Write docs/benchmarks.md from the JSON files of `paceline bench`, so that every figure there was measured.

python scripts/update_benchmarks.py docs/results/*.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.bench import markdown, read_json

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MARK = "<!-- generated below by scripts/update_benchmarks.py -->\n"


def main(paths: list[str]) -> None:
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    sections = [markdown(read_json(Path(path))) for path in sorted(paths)]
    PAGE.write_text(head + MARK + "\n" + "\n\n".join(section.strip() for section in sections) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
