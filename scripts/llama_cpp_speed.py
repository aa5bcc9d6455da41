"""Time llama.cpp on a GGUF file beside ours on the same: greedy, prompt by prompt, by turns, one
thread.

llama.cpp computes with the packed weights, ours with what they unpack to. It is asked in an
environment of its own:

    python -m venv LLAMA; LLAMA/bin/pip install llama-cpp-python      # compiles for many minutes
    .venv/bin/python scripts/llama_cpp_speed.py LLAMA/bin/python [--model smollm2] [--prompts FILES]
    [--drafters none auto]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline import LLM, SamplingParams

LLAMA = "llama.cpp"


def serve(model: str) -> None:
    """Answer prompts, token ids in a line of JSON each, until there are no more; in the
    environment of llama.cpp.
    """
    import llama_cpp

    llama = llama_cpp.Llama(model, n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)
    print(json.dumps({"version": llama_cpp.__version__, "eos": llama.token_eos()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(timed(partial(say, llama, asked["prompt"], asked["count"]))), flush=True)


def say(llama: Any, prompt: list[int], count: int) -> list[int]:
    """llama.cpp's greedy answer of at most `count` tokens."""
    said: list[int] = []
    llama.reset()
    for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
        said.append(int(token))
        if len(said) == count or token == llama.token_eos():
            break
    return said


def say_ours(llm: LLM, prompt: list[int], params: SamplingParams) -> list[int]:
    """Our answer."""
    return llm.generate([prompt], params)[0].token_ids


def timed(answer: Callable[[], list[int]]) -> dict[str, Any]:
    """An answer with its seconds, by the clock and of the processor."""
    start, processor = time.perf_counter(), time.process_time()
    said = answer()
    return {
        "said": said,
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - processor,
    }


def ask(process: subprocess.Popen[str], prompt: list[int], count: int) -> dict[str, Any]:
    """One answer of llama.cpp."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"prompt": prompt, "count": count}) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens, seconds and equal answers of every method."""
    import torch

    from paceline import LLM, SamplingParams, demo
    from paceline.bench.environment import look_around
    from paceline.report.prompts import encode, load_prompts

    torch.set_num_threads(1)
    path = str(demo.find_smollm2()) if options.model == demo.SMOLLM2 else options.model
    llm = LLM(options.model, "none", dtype=options.dtype)
    params = [SamplingParams(options.count, speculation=spec) for spec in options.drafters]
    totals = {
        name: {"tokens": 0, "seconds": 0.0, "processor": 0.0, "equal": 0}
        for name in (LLAMA, *options.drafters)
    }
    words = [options.python, __file__, options.python, "--serve", path]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        about = json.loads(process.stdout.readline())
        for place, prompt in enumerate(load_prompts(options.prompts, options.limit, options.every)):
            ids = encode(prompt, llm.tokenizer)
            if not place:  # warm
                ask(process, ids, 4)
                for one in params:
                    llm.generate([ids], one)
            found = {LLAMA: ask(process, ids, options.count)}
            for spec, one in zip(options.drafters, params, strict=True):
                found[spec] = timed(partial(say_ours, llm, ids, one))
            for name, answer in found.items():
                total = totals[name]
                total["tokens"] += len(answer["said"])
                total["seconds"] += answer["seconds"]
                total["processor"] += answer["processor"]
                total["equal"] += answer["said"] == found[options.drafters[0]]["said"]
    return {
        "llama_cpp_python": about["version"],
        "dtype": options.dtype,
        "environment": asdict(look_around(torch.device("cpu"))),
        "totals": totals,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", help="Python of the environment with llama-cpp-python")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", nargs="*", default=[])
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--count", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--drafters", nargs="+", default=["none", "auto"])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    found = measure(options)
    print(json.dumps(found["environment"]))
    for name, total in found["totals"].items():
        speed, in_processor = (total["tokens"] / total[clock] for clock in ("seconds", "processor"))
        same = f"{total['equal']} answers as {options.drafters[0]}'s"
        print(
            f"{name:12} {speed:.1f} tokens/s, {in_processor:.1f} per processor second,"
            f" {total['tokens']} tokens, {same}"
        )


if __name__ == "__main__":
    main()
