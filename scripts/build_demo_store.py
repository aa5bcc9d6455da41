"""Build the token store that is shipped for the embedded target: paceline/demo/store, described by paceline/demo/store.json.

    python scripts/build_demo_store.py TEXT WORK [OUT]

TEXT is a folder with gpteacher-{codegen,roleplay,toolformer}.jsonl and gsm8k-train.jsonl; prompts of nine kinds are made of it.
WORK holds the embedded target's answers to them (an interrupted run goes on). The same texts, models and versions of torch and
transformers give the same bytes. Half an hour on one core.
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
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import transformers

from paceline import LLM, SamplingParams, datastore, demo
from paceline.datastore.layout import LOCK, read_manifest, write_manifest
from paceline.loading import load_tokenizer

SOURCES = {
    "gpteacher-codegen": "teknium1/GPTeacher, MIT",
    "gpteacher-roleplay": "teknium1/GPTeacher, MIT",
    "gpteacher-toolformer": "teknium1/GPTeacher, MIT",
    "gsm8k-train": "openai/grade-school-math, MIT",
}
EACH = 400  # prompts of each kind
NEW_TOKENS, LONGEST_PROMPT = 128, 700
GROUP, BATCH = 128, 32  # prompts written to WORK together; answered together
OPENING = 3  # tokens of the prompt that a document begins with: the template's last ones, so that beginnings are found too

Prompt = tuple[str, str]  # kind, text


def make_prompts(text: Path) -> list[Prompt]:
    """Prompts of every kind in turn, the same ones for the same texts."""
    chats = {name: list(read_chats(text / f"{name}.jsonl")) for name in SOURCES}
    rng = random.Random(0)
    kinds = {
        "code": [question for question, _ in chats["gpteacher-codegen"]],
        "stub": list(stubs(chats["gpteacher-codegen"])),
        "maths": [question for question, _ in chats["gsm8k-train"]],
        "role": [question for question, _ in chats["gpteacher-roleplay"]],
        "task": [question.split("\n", 4)[-1] for question, _ in chats["gpteacher-toolformer"]],
        "question": list(questions(chain.from_iterable(chats.values()))),
        "summary": [f"Summarize: {passage}" for passage in passages(chats["gpteacher-roleplay"], rng)],
        "grounded": list(grounded(chats, rng)),
        "translation": list(translations(chats["gpteacher-roleplay"], rng)),
    }
    for texts in kinds.values():
        rng.shuffle(texts)
    return [(kind, texts[place]) for place in range(EACH) for kind, texts in kinds.items() if place < len(texts)]


def read_chats(path: Path) -> Iterator[tuple[str, str]]:
    """First question and answer of each conversation."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            messages = json.loads(line)["messages"]
            yield messages[0]["content"], messages[1]["content"]


def stubs(chats: list[tuple[str, str]]) -> Iterator[str]:
    """Python signatures with the instruction as their docstring."""
    for question, answer in chats:
        found = re.search(r"^def \w+\(.*\).*:$", answer, re.MULTILINE)
        if found:
            yield f'{found[0]}\n    """ {question}\n    """\n'


def questions(chats: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Short questions, wherever they are asked."""
    texts = chain.from_iterable(chats)
    found = (re.findall(r"\b(?:Who|What|Where|When|Which|How|Why) [^.?!\n]{12,90}\?", text) for text in texts)
    yield from dict.fromkeys(chain.from_iterable(found))


def passages(chats: list[tuple[str, str]], rng: random.Random) -> Iterator[str]:
    """Texts of two to four answers."""
    answers = [answer for _, answer in chats if len(answer) > 200]
    for _ in answers:
        yield "\n".join(rng.sample(answers, rng.randint(2, 4)))


def grounded(chats: dict[str, list[tuple[str, str]]], rng: random.Random) -> Iterator[str]:
    """Passages with a question behind them."""
    asked = list(questions(chain(chats["gpteacher-roleplay"], chats["gpteacher-toolformer"])))
    for passage in passages(chats["gpteacher-roleplay"], rng):
        yield f"{passage}\n{rng.choice(asked)}"


def translations(chats: list[tuple[str, str]], rng: random.Random) -> Iterator[str]:
    """Sentences to translate. They are English: what is asked for is all that the target makes something of."""
    for _, answer in chats:
        sentences = re.findall(r"[A-Z][^.?!\n]{30,150}[.?!]", answer)
        if sentences:
            yield f"Translate {rng.choice(['German', 'French', 'Spanish'])} to English: {rng.choice(sentences)}"


def answer_all(prompts: list[Prompt], path: Path) -> None:
    """Append the target's greedy answers that `path` lacks; a line that an interruption cut is made again."""
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
    path.write_text("".join(whole))
    done = len(whole)
    llm = LLM(demo.TARGET, "draft_model", demo.DRAFT, dtype="float32", device="cpu", max_batch=BATCH)
    waiting = iter(prompts[done:])
    while group := list(islice(waiting, GROUP)):
        ids = [clip(llm.chat_prompt([{"role": "user", "content": text}])) for _, text in group]
        answers = llm.generate(ids, SamplingParams(max_new_tokens=NEW_TOKENS))
        with path.open("a") as file:
            for (kind, _), prompt, answer in zip(group, ids, answers, strict=True):
                file.write(json.dumps({"kind": kind, "prompt": prompt[-OPENING:], "output": answer.token_ids}) + "\n")
        done += len(group)
        print(f"{done} of {len(prompts)} answers", flush=True)


def clip(ids: list[int]) -> list[int]:
    """A long prompt keeps its first 4 tokens, the template's, and its last ones."""
    return ids if len(ids) <= LONGEST_PROMPT else ids[:4] + ids[4 - LONGEST_PROMPT :]


def read_answers(path: Path, most: int) -> Iterator[tuple[str, list[int]]]:
    """Kind and document of the first `most` answers."""
    with path.open(encoding="utf-8") as file:
        for line in islice(file, most):
            answer = json.loads(line)
            yield answer["kind"], answer["prompt"] + answer["output"]


def build_store(documents: list[list[int]], tokenizer: Any, out: Path) -> None:
    """Put a store in the place of `out` whose bytes follow from the documents."""
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
    """Say beside the store what it holds and how it was made."""
    found = datastore.info(out)
    card = {
        "content": "Greedy answers of the embedded target (paceline/demo/target, float32) to prompts made of texts under the MIT"
        " licence. Prompts of benchmarks and their answers are not among them.",
        "script": "scripts/build_demo_store.py",
        "sources": [{"name": f"{name}.jsonl", "source": source} for name, source in SOURCES.items()],
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=demo.STORE)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    prompts, answers = make_prompts(arguments.text), arguments.work / "answers.jsonl"
    answer_all(prompts, answers)
    kinds, documents = zip(*read_answers(answers, len(prompts)), strict=True)
    build_store(list(documents), load_tokenizer(None, demo.TARGET), arguments.out)
    write_card(arguments.out, dict(Counter(kinds)))


if __name__ == "__main__":
    main()
