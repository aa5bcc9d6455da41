"""Build the datastore of the embedded target: paceline/demo/store, described by store.json.

    python scripts/build_demo_store.py TEXT WORK [OUT]

TEXT is a folder with gpteacher-{codegen,roleplay,toolformer}.jsonl and gsm8k-train.jsonl. From
these files, the script makes prompts of nine kinds. WORK receives the embedded target's answers, as
`paceline record` writes them, and an interrupted run continues. The same texts, models and versions
of torch and transformers give the same bytes. The run takes half an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers

from paceline import LLM, SamplingParams, datastore, demo
from paceline.datastore.layout import LOCK, read_manifest, write_manifest
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.recorded_answers.reading import read_answers
from paceline.replay.recorder import RecordOptions, encode_prompts, record_answers
from paceline.report.prompts import Prompt

SOURCES = {
    "gpteacher-codegen": "teknium1/GPTeacher, MIT",
    "gpteacher-roleplay": "teknium1/GPTeacher, MIT",
    "gpteacher-toolformer": "teknium1/GPTeacher, MIT",
    "gsm8k-train": "openai/grade-school-math, MIT",
}
EACH = 400  # prompts of each kind
NEW_TOKENS, LONGEST_PROMPT = 128, 700
GROUP, BATCH = 128, 32  # prompts written to WORK together; in a forward together
# tokens of the prompt that a document begins with: the template's last ones, so that beginnings are
# found too
OPENING = 3


def make_prompts(text: Path) -> list[Prompt]:
    """Return prompts that alternate between all kinds; the same texts give the same prompts."""
    chats = {name: list(read_chats(text / f"{name}.jsonl")) for name in SOURCES}
    rng = random.Random(0)
    kinds = {
        "code": [question for question, _ in chats["gpteacher-codegen"]],
        "stub": list(stubs(chats["gpteacher-codegen"])),
        "maths": [question for question, _ in chats["gsm8k-train"]],
        "role": [question for question, _ in chats["gpteacher-roleplay"]],
        "task": [question.split("\n", 4)[-1] for question, _ in chats["gpteacher-toolformer"]],
        "question": list(questions(chain.from_iterable(chats.values()))),
        "summary": [
            f"Summarize: {passage}" for passage in passages(chats["gpteacher-roleplay"], rng)
        ],
        "grounded": list(grounded(chats, rng)),
        "translation": list(translations(chats["gpteacher-roleplay"], rng)),
    }
    for texts in kinds.values():
        rng.shuffle(texts)
    return [
        Prompt(f"{kind}-{place}", kind, texts[place])
        for place in range(EACH)
        for kind, texts in kinds.items()
        if place < len(texts)
    ]


def read_chats(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the first question and answer of each conversation."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            messages = json.loads(line)["messages"]
            yield messages[0]["content"], messages[1]["content"]


def stubs(chats: list[tuple[str, str]]) -> Iterator[str]:
    """Yield Python signatures with the instruction as their docstring."""
    for question, answer in chats:
        found = re.search(r"^def \w+\(.*\).*:$", answer, re.MULTILINE)
        if found:
            yield f'{found[0]}\n    """ {question}\n    """\n'


def questions(chats: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield short questions from all texts."""
    texts = chain.from_iterable(chats)
    found = (
        re.findall(r"\b(?:Who|What|Where|When|Which|How|Why) [^.?!\n]{12,90}\?", text)
        for text in texts
    )
    yield from dict.fromkeys(chain.from_iterable(found))


def passages(chats: list[tuple[str, str]], rng: random.Random) -> Iterator[str]:
    """Yield texts of two to four answers."""
    answers = [answer for _, answer in chats if len(answer) > 200]
    for _ in answers:
        yield "\n".join(rng.sample(answers, rng.randint(2, 4)))


def grounded(chats: dict[str, list[tuple[str, str]]], rng: random.Random) -> Iterator[str]:
    """Yield passages, each followed by a question about it."""
    asked = list(questions(chain(chats["gpteacher-roleplay"], chats["gpteacher-toolformer"])))
    for passage in passages(chats["gpteacher-roleplay"], rng):
        yield f"{passage}\n{rng.choice(asked)}"


def translations(chats: list[tuple[str, str]], rng: random.Random) -> Iterator[str]:
    """Yield English sentences with a request to translate them."""
    for _, answer in chats:
        sentences = re.findall(r"[A-Z][^.?!\n]{30,150}[.?!]", answer)
        if sentences:
            yield (
                f"Translate {rng.choice(['German', 'French', 'Spanish'])} to English:"
                f" {rng.choice(sentences)}"
            )


def answer_all(prompts: list[Prompt], path: Path) -> None:
    """Record the target's greedy answers; continue an interrupted run."""
    llm = LLM(
        demo.TARGET, "draft_model", demo.DRAFT, dtype="float32", device="cpu", max_batch=BATCH
    )
    questions = encode_prompts(prompts, llm, NEW_TOKENS, LONGEST_PROMPT + NEW_TOKENS)
    options = RecordOptions(GROUP, demo.NAME)
    record_answers(
        path, llm, questions, SamplingParams(max_new_tokens=NEW_TOKENS), options, progress=True
    )


def build_store(documents: list[list[int]], tokenizer: Any, out: Path) -> None:
    """Replace `out` by a store whose bytes depend only on the documents."""
    shutil.rmtree(out, ignore_errors=True)
    datastore.build(out, documents, len(tokenizer), tokenizer=tokenizer, workers=1)
    manifest = read_manifest(out)
    (shard,) = manifest.shards  # its name is drawn at random
    renamed = replace(shard, name=f"shard-{shard.sums}.bin")
    (out / shard.name).rename(out / renamed.name)
    write_manifest(out, replace(manifest, shards=(renamed,)))
    (out / LOCK).unlink()
    assert not datastore.verify(out)


def write_card(out: Path, counts: dict[str, int]) -> None:
    """Write a file next to the store that describes its content and origin."""
    found = datastore.info(out)
    card = {
        "content": "Greedy answers of the embedded target (paceline/demo/target, float32) to"
        " prompts made of texts under the MIT licence. Prompts of benchmarks and their answers are"
        " not among them.",
        "script": "scripts/build_demo_store.py",
        "sources": [
            {"name": f"{name}.jsonl", "source": source} for name, source in SOURCES.items()
        ],
        "documents_of_each_kind": counts,
        "new_tokens_at_most": NEW_TOKENS,
        "documents": found.documents,
        "tokens": found.tokens,
        "bytes": found.size,
        "tokenizer": found.tokenizer,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    out.with_suffix(".json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=demo.STORE)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    path = arguments.work / "answers.jsonl"
    answer_all(make_prompts(arguments.text), path)
    answers = list(read_answers(path))
    documents = [answer.prompt_ids[-OPENING:] + answer.output_ids for answer in answers]
    build_store(documents, load_tokenizer(None, demo.TARGET), arguments.out)
    write_card(arguments.out, dict(Counter(answer.category for answer in answers)))


if __name__ == "__main__":
    main()
