"""Measure forward passes, commits and answers of a model in llama.cpp, by processor time.

    python scripts/llama_cpp_costs.py MODEL.gguf RESULT.json

One thread; processor time does not count the time in which other programs run.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from paceline import LLM, SamplingParams, demo
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.target import GgufTarget
from paceline.report.prompts import load_prompts
from paceline.util.machine import processor

KIND = "costs of llama.cpp (1)"
ROWS = (1, 2, 4, 8, 16)
TEXT, REPEATS = 256, 9
ANSWERS, LENGTH, ROUNDS = 6, 32, 3


def shortest_ms(call: Callable[[], object], after: Callable[[], object] = lambda: None) -> float:
    """The shortest processor time of a call, in ms; `after` is not timed."""
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
        after()
    return round(1e3 * min(times), 3)


def forward_ms(model: GgufModel, exact: bool) -> dict[str, float]:
    """The time of a forward pass after a text, by number of rows."""
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
    """The time that sequences take besides the forward pass."""
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
    """Processor seconds of the same answers, plain and with `auto`, in turns."""
    llms = {name: LLM(path, name, engine="llama.cpp", device="cpu") for name in ("none", "auto")}
    prompts = [prompt.text for prompt in load_prompts((), ANSWERS, 4)]
    params = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    seconds: dict[str, list[float]] = {name: [] for name in llms}
    texts: dict[str, list[list[int]]] = {}
    for number in range(1 + ROUNDS):
        for name, llm in llms.items():
            start = time.process_time()
            texts[name] = [each.token_ids for each in llm.generate(prompts, params)]
            if number:  # the first round measures the cost curve
                seconds[name].append(time.process_time() - start)
    assert texts["none"] == texts["auto"]
    ratio = min(seconds["none"]) / min(seconds["auto"])
    pairs = [a / b for a, b in zip(seconds["none"], seconds["auto"], strict=True)]
    return {
        "prompts": len(prompts),
        "seconds": {name: [round(each, 3) for each in values] for name, values in seconds.items()},
        "auto over plain": round(ratio, 3),
        "median of pairs": round(median(pairs), 3),
    }


def main(path: str, result: str) -> None:
    torch.set_num_threads(1)
    model = GgufModel(demo.target_of(path), on_gpu=False)
    content = {
        "kind": KIND,
        "processor": processor(),
        "library": model.library.version,
        "model": f"{Path(str(demo.target_of(path))).name}: {model.description}",
        "forward_ms": {
            name: forward_ms(model, exact)
            for name, exact in (("batch-invariant", True), ("not batch-invariant", False))
        },
        "bookkeeping_ms": bookkeeping_ms(model),
        "answers": answers(path),
    }
    Path(result).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
