"""Write the Python standard library (PSF-2.0) as training texts, one source file per line.

python scripts/training_texts.py library.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from demo_pair_data import load_corpus


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    corpus = load_corpus(Path("no chats"), random.Random(0))
    arguments.out.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in corpus.files), "utf-8"
    )
    print(f"{len(corpus.files)} files; {corpus.sources[-1]}")


if __name__ == "__main__":
    main()
