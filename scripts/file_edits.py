"""Edits of files that are in the prompt: tokens per forward pass and speed of `auto`.

    python scripts/file_edits.py smollm2 --plain-every 2 --json docs/results/file-edits.json

Each case of scripts/data/file_edits is a file, an instruction and the edited file. The model is
forced to answer with the edited file: a logits processor gives the recorded answer, token by token,
and the model still computes every forward pass. The processor does not report forced tokens to
drafters. `--free` lets the model answer instead, up to the same length. The drafters answer each
case in turn, so that all of them meet the same load of the machine. With `--plain-every`, plain
decoding answers only some cases, and the speeds are those of these cases.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline import LLM, SamplingParams, demo
from paceline.util.machine import processor

DATA = Path(__file__).parent / "data" / "file_edits"
PREDICTED = "auto, with the file as prediction"
# Without earlier answers, which hold edits of the same files. The last two are separate drafters:
# neither knows the answers of the other.
DRAFTERS = {
    "none": "none",
    "auto": "auto:answer_cache_tokens=0",
    PREDICTED: "auto:answer_cache_tokens=0,max_nodes=48",
}
_FORBIDDEN, _FORCED = -1e4, 1e4


@dataclass(frozen=True)
class Edit:
    """A file, an instruction, and the file after the edit."""

    file: str
    instruction: str
    before: str
    after: str

    @property
    def messages(self) -> list[dict[str, str]]:
        text = f"{self.instruction} Answer with the whole file {self.file}.\n\n{self.before}"
        return [{"role": "user", "content": text}]


class RecordedAnswer:
    """Forces the tokens of a recorded answer.

    Args:
        token_ids: Tokens of the answer.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids
        self._prompt_length = -1

    def __copy__(self) -> RecordedAnswer:
        return RecordedAnswer(self._token_ids)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores that allow only the next token of the answer."""
        if self._prompt_length < 0:
            self._prompt_length = ids.shape[1]
        at = min(ids.shape[1] - self._prompt_length, len(self._token_ids) - 1)
        forced = torch.full_like(scores, _FORBIDDEN)
        forced[:, self._token_ids[at]] = _FORCED
        return forced


@dataclass
class Figures:
    """Sums over the answers of one drafter."""

    name: str
    answers: int = 0
    equal: int = 0
    tokens: int = 0
    forwards: int = 0
    seconds: dict[int, tuple[float, float]] = field(default_factory=dict)  # wall, processor

    def over(self, cases: Iterable[int], clock: int) -> float:
        """Return the sum of one of the clocks over cases."""
        return sum(self.seconds[case][clock] for case in cases)


def edits() -> list[Edit]:
    """Return all cases; edits of the same file are far apart."""
    cases: list[list[Edit]] = []
    for file, entries in json.loads((DATA / "edits.json").read_text(encoding="utf-8")).items():
        before = (DATA / file).read_text(encoding="utf-8")
        cases.append([])
        for instruction, replacements in entries:
            after = before
            for old, new in replacements:
                after = after.replace(old, new)
            cases[-1].append(Edit(file, instruction, before, after))
    return [edit for several in zip(*cases, strict=True) for edit in several]


def answer(llm: LLM, edit: Edit, number: int, figures: Figures, is_free: bool) -> list[int]:
    """Answer one case, add it to the figures, and return the token ids."""
    name = figures.name
    recorded = [*llm.tokenizer(edit.after)["input_ids"], llm.eos_token_ids[0]]
    params = SamplingParams(
        len(recorded),
        temperature=0.0,
        speculation=DRAFTERS[name],
        prediction=edit.before if name == PREDICTED else "",
        logits_processors=() if is_free else (RecordedAnswer(recorded),),
    )
    prompt = llm.chat_prompt(edit.messages)
    started, used = time.perf_counter(), time.process_time()
    completion = llm.generate([prompt], params)[0]
    clocks = (time.perf_counter() - started, time.process_time() - used)
    figures.seconds[number] = clocks
    figures.answers += 1
    figures.tokens += len(completion.token_ids)
    figures.forwards += completion.stats.target_forwards
    if not is_free:
        assert completion.token_ids == recorded, (edit, name)
    return completion.token_ids


def record(figures: Figures, plain: Figures) -> dict[str, Any]:
    """Return the figures of a drafter, over those of plain decoding."""
    return {
        "drafter": figures.name,
        "answers": figures.answers,
        "equal": figures.equal,
        "tokens": figures.tokens,
        "tokens_per_forward": round(figures.tokens / max(1, figures.forwards), 3),
        "timed": len(plain.seconds),
        "speed": round(plain.over(plain.seconds, 0) / figures.over(plain.seconds, 0), 3),
        "processor_speed": round(plain.over(plain.seconds, 1) / figures.over(plain.seconds, 1), 3),
    }


def run(llm: LLM, options: argparse.Namespace) -> None:
    """Answer all cases with every drafter, and write the figures."""
    results = {name: Figures(name) for name in DRAFTERS}
    for number, edit in enumerate(edits()[: options.count]):
        plain: list[int] | None = None
        for name, figures in results.items():
            if name == "none" and number % options.plain_every:
                continue
            ids = answer(llm, edit, number, figures, options.free)
            plain = ids if name == "none" else plain
            figures.equal += ids == plain
        rows = [record(figures, results["none"]) for figures in results.values()]
        print(json.dumps(rows[-2:]), flush=True)
        if options.json is not None:
            document = {"model": options.model, "machine": processor(), "results": rows}
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--count", type=int)
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--plain-every", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # unpack: as in the other tables
    llm = LLM(str(demo.target_of(options.model)), max_batch=1, keep_prefixes=0, unpack=True)
    for spec in DRAFTERS.values():  # loads and compiles
        llm.generate([llm.chat_prompt(edits()[0].messages)], SamplingParams(8, speculation=spec))
    run(llm, options)


if __name__ == "__main__":
    main()
