"""Fit the calibration that comes with `sssd`: paceline/drafters/sssd/calibration.json.

    python scripts/fit_calibration.py ../shared/data answers.jsonl OUT [--half] [--limit N]

The folder has recorded answers of three models (traces/*.jsonl) and texts (text/*.jsonl), of which
a store is made; `answers.jsonl` are the answers of a model of today to
`scripts/training_prompts.py`. Of these one half is fitted on, with the other as its store and
without a store. `--half` leaves out every second answer of each kind, to judge by. Ten minutes on
one core.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paceline import datastore
from paceline.cli.datastore import vocabulary_of
from paceline.cli.loading import load_tokenizer
from paceline.datastore.inputs import documents
from paceline.recorded_answers.reading import read_answers
from paceline.replay.fit import AnswerKind, calibrate
from paceline.replay.traces import read_traces

TRACES = ("vicuna7b-mtbench", "gpt3-175b-gsm8k", "deepseek-coder-6.7b-classeval")
TOKENIZER = "mistral-common"  # of the traces, which are text
OPENING = (
    3  # tokens of the prompt that a stored answer begins with, so that beginnings are found too
)


def store_of_texts(texts: Path, folder: Path, tokenizer: Any) -> Path:
    """Build a store of chats."""
    datastore.build(
        folder,
        documents(sorted(map(str, texts.glob("*.jsonl"))), tokenizer),
        vocabulary_of(tokenizer),
    )
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--limit", type=int, help="of the answers")
    arguments = parser.parse_args()
    step = 2 if arguments.half else 1
    tokenizer = load_tokenizer(TOKENIZER)
    own = list(read_answers(arguments.answers, arguments.limit))
    with tempfile.TemporaryDirectory() as folder:
        texts = store_of_texts(arguments.data / "text", Path(folder) / "texts", tokenizer)
        kinds = {
            name: AnswerKind(
                list(read_traces(arguments.data / "traces" / f"{name}.jsonl", tokenizer))[::step],
                texts,
            )
            for name in TRACES
        }
        stored, fitted = (
            own[::2],
            [(answer.prompt_ids, answer.output_ids) for answer in own[1::2]][::step],
        )
        said = [np.array(answer.prompt_ids[-OPENING:] + answer.output_ids) for answer in stored]
        datastore.build(Path(folder) / "own", said, 1 + max(int(ids.max()) for ids in said))
        kinds |= {
            "smollm2": AnswerKind(fitted),
            "smollm2-store": AnswerKind(fitted, Path(folder) / "own"),
        }
        made = calibrate(kinds, lambda what: print(what, flush=True))
    made.save(arguments.out)
    print(made.about)


if __name__ == "__main__":
    main()
