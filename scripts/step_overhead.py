"""Measure the host time of a decode step outside the models' forward passes.

    python scripts/step_overhead.py [--label after] [--drafters auto,sssd] [--batches 1,8,32]
    [--tokens 96] [--rounds 3] [--json FILE]

The target is the embedded model. The draft budget gets a flat cost curve, so trees become as large
as on a GPU. Times are CPU time of the engine's thread, because other programs share the cores. The
result is stored under its label, so that one file holds the figures before and after a change.
"""

from __future__ import annotations

import time

time.perf_counter = time.thread_time  # before any import that binds the function

import argparse  # noqa: E402
import json  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import mean, median  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from paceline import LLM, SamplingParams, demo  # noqa: E402
from paceline.bench.environment import look_around  # noqa: E402
from paceline.core.metrics import Timing  # noqa: E402
from paceline.draft_budget.cost_curve import CostCurve  # noqa: E402
from paceline.engine.engine import Engine  # noqa: E402
from paceline.engine.request_handle import RequestHandle  # noqa: E402

DEFAULT = Path(__file__).parent.parent / "docs" / "results" / "step-overhead.json"
# Seconds of a forward pass by rows, as on a large GPU: rows cost almost nothing.
CURVE = CostCurve((1, 16, 32, 64, 128), (6e-3, 6.05e-3, 6.1e-3, 6.3e-3, 7e-3))
WITH_DRAFT = "+draft"  # suffix of a drafter that also gets the embedded draft model
DRAFTERS = (
    *("none", "prompt_lookup", "sssd", "token_recycling", "lookahead"),
    *("auto", "auto" + WITH_DRAFT, "draft_model" + WITH_DRAFT),
)
MAX_PROMPT = 200  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class Step:
    """What one decode step took.

    Attributes:
        timing: Seconds of the step, by kind of work.
        rows: Tokens and draft nodes that the target computed, without padding.
        tokens: New tokens.
    """

    timing: Timing
    rows: int
    tokens: int

    @property
    def overhead(self) -> float:
        """Seconds outside the forward passes of target, draft model and draft head."""
        return self.timing.step - self.timing.target_forward - self.timing.draft_forward


@dataclass(frozen=True, slots=True)
class Overhead:
    """The steps of one drafter at one batch size.

    Attributes:
        drafter: Spec of the drafter.
        batch: Number of requests; only steps with all of them count.
        steps: Number of steps.
        overhead_ms: Median host time outside forward passes.
        mean_overhead_ms: Mean host time outside forward passes.
        target_ms: Median time in the target's forward pass.
        draft_ms: Median time in forward passes of the draft model and the draft head.
        rows: Mean number of rows per step.
        tokens: Mean number of new tokens per request and step.
    """

    drafter: str
    batch: int
    steps: int
    overhead_ms: float
    mean_overhead_ms: float
    target_ms: float
    draft_ms: float
    rows: float
    tokens: float

    @staticmethod
    def of(drafter: str, batch: int, steps: Sequence[Step]) -> Overhead:
        """Summarise steps."""
        timings = [step.timing for step in steps]
        return Overhead(
            drafter,
            batch,
            len(steps),
            1e3 * median(step.overhead for step in steps),
            1e3 * mean(step.overhead for step in steps),
            1e3 * median(timing.target_forward for timing in timings),
            1e3 * median(timing.draft_forward for timing in timings),
            mean(step.rows for step in steps),
            mean(step.tokens for step in steps) / batch,
        )

    def __str__(self) -> str:
        return (
            f"{self.drafter:18s} batch {self.batch:2d}: {self.overhead_ms:5.2f} ms"
            f" (mean {self.mean_overhead_ms:5.2f}) outside forwards; target {self.target_ms:6.2f},"
            f" drafts {self.draft_ms:5.2f} ms; {self.rows:5.1f} rows, {self.tokens:4.2f} tokens"
            f" per request; {self.steps} steps"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="after")
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for drafter in args.drafters.split(","):
        for batch in map(int, args.batches.split(",")):
            steps = list(measured_steps(drafter, batch, args.rounds, args.tokens))
            results.append(Overhead.of(drafter, batch, steps))
            print(results[-1], flush=True)
    if args.json is not None:
        save(args.json, args.label, results)


def measured_steps(drafter: str, batch: int, rounds: int, tokens: int) -> Iterator[Step]:
    """Yield the decode steps of full batches; a first batch warms up caches and tables.

    Args:
        drafter: Spec of the drafter.
        batch: Number of requests.
        rounds: Number of batches.
        tokens: Number of tokens per answer.
    """
    llm = LLM(
        demo.TARGET,
        drafter.removesuffix(WITH_DRAFT),
        draft_model="demo" if drafter.endswith(WITH_DRAFT) else None,
        dtype="float32",
        device="cpu",
        max_batch=batch,
        batch_invariant=False,
        cost_curve=CURVE,
    )
    prompts = prompt_ids(llm.tokenizer)
    params = SamplingParams(tokens, ignore_eos=True)
    for turn in range(1 + rounds):
        chosen = [prompts[(turn * batch + index) % len(prompts)] for index in range(batch)]
        steps = list(decode_steps(llm, chosen, params))
        if turn:
            yield from steps


def decode_steps(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> Iterator[Step]:
    """Answer a batch, and yield its decode steps while no request has ended."""
    groups = llm._inputs.request_groups(prompts, params)
    engine: Engine = llm._engine
    handles = engine.submit([request for group in groups for request in group])
    while not any(handle.done for handle in handles):
        decodes = all(handle.request.output_ids for handle in handles)
        before, length = engine.timing, num_tokens(handles)
        engine.step()
        if decodes:
            rows = sum(handle.request.counters.query_tokens[-1] for handle in handles)
            yield Step(engine.timing - before, rows, num_tokens(handles) - length)
    engine.finish(handles)


def num_tokens(handles: Sequence[RequestHandle]) -> int:
    return sum(len(handle.request) for handle in handles)


def prompt_ids(tokenizer: Any) -> list[list[int]]:
    """Return the token ids of the embedded prompts, cut to a common maximum length."""
    lines = demo.PROMPTS.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["turns"][0] for line in lines]
    return [tokenizer(text)["input_ids"][:MAX_PROMPT] for text in texts]


def save(path: Path, label: str, results: Sequence[Overhead]) -> None:
    """Store the results under a label, next to those of other labels."""
    known = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    known["runs"][label] = {
        "environment": asdict(look_around(torch.device("cpu"))),
        "results": [asdict(result) for result in results],
    }
    content = {"schema": 1, "kind": "step-overhead", "runs": known["runs"]}
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
