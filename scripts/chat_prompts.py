"""Write typical chat prompts: questions, letters, stories, roles, translation, summaries.

    python scripts/chat_prompts.py chats.jsonl
    python scripts/chat_prompts.py about-texts.jsonl --passages answers.jsonl more-answers.jsonl
    --tokenizer smollm2

The script draws entries from the lists in `scripts/data/chat_subjects.json` by seed. The second
command writes prompts that ask about a passage, or for its summary. The passages are recorded
answers of the model (files of `paceline record`), such as news and stories. `--never` names files
with prompts to leave out, because they are measured on or already answered.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import zlib
from pathlib import Path

from paceline.cli.loading import load_tokenizer
from paceline.recorded_answers.reading import read_answers

COUNTS = {"chat": 1150, "qa": 450, "translation": 400}
COUNTS_WITH_TEXT = {"summaries": 450, "documents": 350}
REPETITIVE = 0.36  # of its size is left of an answer that says the same again and again
SUBJECTS = Path(__file__).parent / "data" / "chat_subjects.json"
# where they are of another name
PATTERNS = {"translation": "translate", "summaries": "summarise", "documents": "consult"}
SLOT = re.compile(r"\{(\w+)\}")
Lists = dict[str, list[str]]


def filled(pattern: str, lists: Lists, rng: random.Random) -> str:
    """Fill each slot of a pattern with an entry of its list; entries may contain slots."""
    while SLOT.search(pattern):
        pattern = SLOT.sub(lambda slot: rng.choice(lists[slot[1]]), pattern, count=1)
    return pattern[0].upper() + pattern[1:]


def passages_of(recordings: list[Path], tokenizer: str) -> list[str]:
    """Return the recorded answers that are long and varied enough to summarise."""
    decode = load_tokenizer(tokenizer).decode
    answers = (
        decode(answer.output_ids, skip_special_tokens=True).strip()
        for path in recordings
        for answer in read_answers(path)
    )
    return [
        text
        for text in answers
        if len(text) > 500 and "```" not in text and compressed(text) > REPETITIVE
    ]


def compressed(text: str) -> float:
    return len(zlib.compress(text.encode())) / len(text.encode())


def question(kind: str, lists: Lists, passages: list[str], rng: random.Random) -> str:
    """Draw a prompt of one kind."""
    pattern = filled(rng.choice(lists[PATTERNS.get(kind, kind)]), lists, rng)
    if kind == "translation":
        return pattern + filled("{german}", lists, rng)
    if kind == "summaries":
        return pattern.replace("<text>", rng.choice(passages))
    if kind == "documents":
        return pattern.replace("<text>", "\n\n".join(rng.sample(passages, rng.choice([1, 2, 3]))))
    return pattern


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--passages",
        type=Path,
        nargs="*",
        help="recorded answers of the model, for prompts with a text",
    )
    parser.add_argument("--tokenizer", help="directory, hub id or word of the model that said them")
    parser.add_argument(
        "--never",
        type=Path,
        nargs="*",
        default=[],
        help="files of prompts that must not be among them",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--times", type=float, default=1.0, help="so many times as many of each kind"
    )
    arguments = parser.parse_args()
    if bool(arguments.passages) != bool(arguments.tokenizer):
        parser.error("--passages and --tokenizer: got one of the two; expected both, or neither")
    rng = random.Random(arguments.seed)
    lists: Lists = json.loads(SUBJECTS.read_text("utf-8"))
    passages = passages_of(arguments.passages, arguments.tokenizer) if arguments.passages else []
    if arguments.passages and len(passages) < 3:
        parser.error(
            f"--passages: got {len(passages)} answers of more than 500 characters that say enough;"
            " expected 3 at least"
        )
    counts = COUNTS_WITH_TEXT if arguments.passages else COUNTS
    seen = {
        turn.strip()
        for path in arguments.never
        for line in path.open()
        for turn in json.loads(line)["turns"]
    }
    rows = []
    for kind, count in counts.items():
        for number in range(round(arguments.times * count)):
            turn = question(kind, lists, passages, rng)
            if turn not in seen:
                seen.add(turn)
                rows.append({"id": f"{kind}/{number}", "category": kind, "turns": [turn]})
    rng.shuffle(rows)
    arguments.out.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8"
    )
    print(f"{len(rows)} prompts of {len(passages)} passages")


if __name__ == "__main__":
    main()
