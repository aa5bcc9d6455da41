"""Compare concurrent callers of one engine with the same calls in sequence.

The callers are two threads and an open stream.

    python scripts/compare_callers.py [DRAFTER] [COST_SCALE], for example: none 1024x12
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from paceline import LLM, SamplingParams, demo
from paceline.bench import CostScale, enlarge
from paceline.model.loading import load_model

ROUNDS = 3
PARAMS = SamplingParams(max_new_tokens=32)

Answers = list[list[int]]


def together(llm: LLM, prompts: list[list[int]]) -> Answers:
    """Return the answers of a stream and two threads that run at the same time."""
    stream = llm.stream(prompts[0], PARAMS)
    first = next(stream)
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(llm.generate, prompts[1 + part :: 2], PARAMS) for part in (0, 1)]
        streamed = [*first.token_ids, *(token for chunk in stream for token in chunk.token_ids)]
        return [streamed, *([out.token_ids for job in jobs for out in job.result()])]


def in_turn(llm: LLM, prompts: list[list[int]]) -> Answers:
    """Return the answers of the same calls, made one after the other."""
    streamed = [token for chunk in llm.stream(prompts[0], PARAMS) for token in chunk.token_ids]
    outs = [out for part in (0, 1) for out in llm.generate(prompts[1 + part :: 2], PARAMS)]
    return [streamed, *(out.token_ids for out in outs)]


def timed(
    call: Callable[[LLM, list[list[int]]], Answers], llm: LLM, prompts: list[list[int]]
) -> tuple[float, Answers]:
    start = time.perf_counter()
    answers = call(llm, prompts)
    return time.perf_counter() - start, answers


def main(drafter: str = "none", cost_scale: str = "1024x12") -> None:
    torch.set_num_threads(1)
    scale = CostScale.parse(cost_scale)
    target = enlarge(load_model(demo.TARGET, "float32"), scale.width, scale.layers)
    llm = LLM(target, drafter, tokenizer=demo.TARGET)
    turns = [
        json.loads(line)["turns"][0]
        for line in demo.PROMPTS.read_text(encoding="utf-8").splitlines()[:7]
    ]
    prompts = [llm.chat_prompt([{"role": "user", "content": turn}]) for turn in turns]
    in_turn(llm, prompts)  # warm
    ratios, equal = [], True
    for _ in range(ROUNDS):
        alone, expected = timed(in_turn, llm, prompts)
        shared, answers = timed(together, llm, prompts)
        ratios.append(alone / shared)
        equal = equal and answers == expected
        print(f"in turn {alone:.2f} s, together {shared:.2f} s: {ratios[-1]:.2f}x")
    print(
        f"{drafter}, {cost_scale}, float32, one thread of torch: {statistics.median(ratios):.2f}x,"
        f" same ids: {equal}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
