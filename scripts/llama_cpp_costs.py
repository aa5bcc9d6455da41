"""Measure the processor time of forward passes, commits and answers in llama.cpp.

    python scripts/llama_cpp_costs.py MODEL.gguf RESULT.json [forward_ms] [bookkeeping_ms] [answers]

The script uses one thread and processor time, which does not include other programs. The last
arguments select what to measure again; the result keeps the other figures.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline import LLM, SamplingParams, demo
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.target import GgufTarget
from paceline.report.prompts import load_prompts
from paceline.util.machine import processor

KIND = "costs of llama.cpp (2)"
ROWS = (1, 2, 4, 8, 16)
TEXT, REPEATS = 256, 9
BATCHES, LENGTH, ROUNDS = (1, 8), 64, 3
ANSWERS, STRIDE = 9, 4  # prompts of the demo
REPETITIVE = (
    "Write the days of the week. Then write the same list three more times.",
    "Copy this sentence ten times: The quick brown fox jumps over the lazy dog.",
    "Count from 1 to 10. Then count from 1 to 10 again, and again.",
    "Write a Python class with eight methods get_a, get_b, get_c, and so on, that return an"
    " attribute each.",
    "Repeat the word hello fifty times.",
    "Write a JSON list of eight users; each has the keys id, name and email.",
)


def shortest_ms(call: Callable[[], object], after: Callable[[], object] = lambda: None) -> float:
    """Return the shortest processor time of a call in ms; `after` is not timed."""
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
        after()
    return round(1e3 * min(times), 3)


def forward_ms(model: GgufModel, exact: bool) -> dict[str, float]:
    """Return the time of a forward pass after a text, by number of rows."""
    target, request = prepared(model, exact)
    return {
        str(rows): shortest_ms(
            lambda rows=rows: target.forward([request], [DraftTree.chain([1] * (rows - 1))])  # type: ignore[misc]
        )
        for rows in ROWS
    }


def prepared(model: GgufModel, exact: bool = True) -> tuple[GgufTarget, Request]:
    target = GgufTarget(model, 1, exact)
    source = random.Random(0)
    tokens = [source.randrange(model.vocab_size) for _ in range(TEXT)]
    request = Request(tokens, SamplingParams(max_new_tokens=TEXT))
    target.open(request)
    target.feed([request])
    request.append([1])
    return target, request


def bookkeeping_ms(model: GgufModel) -> dict[str, float]:
    """Return the time of sequence operations outside the forward pass."""
    target, request = prepared(model)
    tree = DraftTree(list(range(16)), [-1, *range(7), *[-1] * 8])
    start = time.thread_time()
    target.forward_nodes([request], [tree])
    commits = []
    for _ in range(REPEATS):
        target.forward_nodes([request], [tree])
        start = time.thread_time()
        target.commit([[8]])
        commits.append(time.thread_time() - start)
        request.append([8, 1])
    target.forward_nodes([request], [EMPTY_TREE])
    target.commit([[]])
    cells = target._cells
    move = shortest_ms(lambda: cells._move_to(cells.num_cells))
    return {"commit of 16 nodes, 9 leaves": round(1e3 * min(commits), 3), "move to the front": move}


def answers(path: str) -> dict[str, Any]:
    """Return the processor seconds of the same answers, plain and with `auto` in turn.

    Every round starts new engines, so that no engine has seen an answer before.
    """
    prompts = [prompt.text for prompt in load_prompts((), ANSWERS, STRIDE)] + list(REPETITIVE)
    seconds: dict[str, dict[str, list[float]]] = {}
    for batch in BATCHES:
        rounds = [answer_seconds(path, prompts, batch) for _ in range(ROUNDS)]
        seconds[str(batch)] = {
            name: [round(each[name], 3) for each in rounds] for name in rounds[0]
        }
        print(batch, seconds[str(batch)], flush=True)
    return {"prompts": len(prompts), "tokens": LENGTH, "seconds": seconds}


def answer_seconds(path: str, prompts: list[str], batch: int) -> dict[str, float]:
    """Return the processor seconds by drafter; the drafters alternate by group of prompts."""
    llms = {
        name: LLM(path, name, engine="llama.cpp", device="cpu", max_batch=batch)
        for name in ("none", "auto")
    }
    for llm in llms.values():  # the first answer checks the cost curve
        llm.generate(prompts[:1], SamplingParams(max_new_tokens=2))
    params = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    seconds = dict.fromkeys(llms, 0.0)
    for first in range(0, len(prompts), batch):
        texts = []
        for name, llm in llms.items():
            start = time.process_time()
            outs = llm.generate(prompts[first : first + batch], params)
            seconds[name] += time.process_time() - start
            texts.append([out.token_ids for out in outs])
        assert texts[0] == texts[1]
    return seconds


def main(path: str, result: str, *names: str) -> None:
    torch.set_num_threads(1)
    model, file = GgufModel(demo.target_of(path), on_gpu=False), Path(result)
    content = json.loads(file.read_bytes()) if names else {}
    content |= {
        "kind": KIND,
        "processor": processor(),
        "library": model.library.version,
        "model": f"{Path(str(demo.target_of(path))).name}: {model.description}",
    }
    sections: dict[str, Callable[[], Any]] = {
        "forward_ms": lambda: {
            name: forward_ms(model, exact)
            for name, exact in (("batch-invariant", True), ("not batch-invariant", False))
        },
        "bookkeeping_ms": lambda: bookkeeping_ms(model),
        "answers": lambda: answers(path),
    }
    content |= {name: sections[name]() for name in names or sections}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
