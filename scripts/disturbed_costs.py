"""Compare `auto` with cost curves from a busy and from a quiet machine.

    python scripts/disturbed_costs.py [--threads 1] [--loops 2] [--warm 20] [--requests 20]
    [--tokens 64] [--json FILE]

The model is SmolLM2-135M in bfloat16. Busy loops run only while the first curve is measured. Then
three engines answer the same prompts in turn: `auto` with each curve, and plain decoding. The
figures leave out the first requests, which warm up the engines. `scripts/update_benchmarks.py`
writes the figures into docs/concepts/draft-budget.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline import LLM, SamplingParams, demo
from paceline.bench.environment import look_around
from paceline.draft_budget.cost_curve import MeasuredCurve
from paceline.util.stopwatch import clock_of

DEFAULT = Path(__file__).parent.parent / "docs" / "results" / "disturbed-costs.json"
ALLOWED = 0.95  # of the speed with the quiet curve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=demo.SMOLLM2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path, default=DEFAULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    environment = look_around(torch.device("cpu"))
    plain = LLM(args.model, "none", dtype="bfloat16", max_batch=1)
    with busy(args.loops):
        disturbed, at_first = engine_with_curve(plain)
    quiet, quiet_curve = engine_with_curve(plain)
    engines = {"none": plain, "disturbed": disturbed, "quiet": quiet}
    seconds = answer(
        engines, args.warm + args.requests, SamplingParams(args.tokens, ignore_eos=True)
    )
    measured = {name: sum(each[args.warm :]) for name, each in seconds.items()}
    speed = {name: measured["none"] / measured[name] for name in ("disturbed", "quiet")}
    ratio = speed["disturbed"] / speed["quiet"]
    result = {
        "schema": 1,
        "kind": "disturbed-costs",
        "model": args.model,
        "threads": args.threads,
        "loops": args.loops,
        "warm": args.warm,
        "requests": args.requests,
        "tokens": args.tokens,
        "environment": asdict(environment),
        "curves": {
            "disturbed": asdict(at_first),
            "disturbed_in_the_end": asdict(current(disturbed)),
            "quiet": asdict(quiet_curve),
            "quiet_in_the_end": asdict(current(quiet)),
        },
        "seconds": seconds,
        "speed_over_none": speed,
        "disturbed_over_quiet": ratio,
    }
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"auto over none: {speed['disturbed']:.3f} with the curve measured beside {args.loops} busy"
        f" loops, {speed['quiet']:.3f} with the quiet one: {ratio:.3f} of it; expected at least"
        f" {ALLOWED}"
    )
    sys.exit(ratio < ALLOWED)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        time.sleep(1)
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def engine_with_curve(plain: LLM) -> tuple[LLM, MeasuredCurve]:
    """Return an engine that measures its cost curve now, in an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PACELINE_CACHE"] = folder
        llm = LLM(plain.model.model, "auto", tokenizer=plain.tokenizer, max_batch=1)
        assert llm.costs is not None
        llm.costs.curve()
        return llm, current(llm)


def current(llm: LLM) -> MeasuredCurve:
    found = llm.costs.recall() if llm.costs is not None else None
    assert found is not None
    return found


def answer(engines: dict[str, LLM], count: int, params: SamplingParams) -> dict[str, list[float]]:
    """Return the seconds of each request by engine; the engines take turns."""
    clock = clock_of(torch.device("cpu"))
    texts = [
        json.loads(line)["turns"][0]
        for line in demo.PROMPTS.read_text(encoding="utf-8").splitlines()
    ]
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PACELINE_CACHE"] = folder
        for turn in range(count):
            prompt = engines["none"].chat_prompt(
                [{"role": "user", "content": texts[turn % len(texts)]}]
            )
            for name in rotated(list(engines), turn):
                start = clock()
                engines[name].generate([prompt], params)
                seconds[name].append(clock() - start)
    return seconds


def rotated(names: list[Any], turn: int) -> list[Any]:
    return names[turn % len(names) :] + names[: turn % len(names)]


if __name__ == "__main__":
    main()
