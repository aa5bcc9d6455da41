"""Measure the host time of a decode step outside the models' forward passes.

    python scripts/step_overhead.py [--label after] [--drafters auto,sssd] [--batches 1,8,32]
    [--tokens 96] [--rounds 3] [--repeats 3] [--json FILE]

The target is the embedded model. The draft budget gets a flat cost curve, so trees become as large
as on a GPU. Work that a GPU would do is timed on its own: finding the likeliest tokens of logits,
and moving entries of the KV cache. Times are CPU time of the engine's thread, because other
programs share the cores. The results are stored under a label, so that one file holds the figures
before and after a change.
"""

from __future__ import annotations

import time

time.perf_counter = time.thread_time  # before any import that binds the function

import argparse  # noqa: E402
import json  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import mean, median  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from paceline import LLM, SamplingParams, demo  # noqa: E402
from paceline.backend.resolve import cpu_backend  # noqa: E402
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
    """Times and counts of one decode step.

    Attributes:
        timing: Seconds of the step, by kind of work.
        device: Seconds of operations that would run on a GPU.
        rows: Tokens and draft nodes that the target computed, without padding.
        tokens: New tokens.
    """

    timing: Timing
    device: float
    rows: int
    tokens: int

    @property
    def overhead(self) -> float:
        """Seconds outside device operations, and outside all forward passes.

        These are the forward passes of the target, the draft model and the draft head.
        """
        timing = self.timing
        return timing.step - timing.target_forward - timing.draft_forward - self.device


@dataclass(frozen=True, slots=True)
class Overhead:
    """The steps of one drafter at one batch size.

    Attributes:
        drafter: Spec of the drafter.
        batch: Number of requests; only steps with all of them count.
        steps: Number of steps.
        overhead_ms: Median of `Step.overhead`.
        repeats_ms: The same median for each repeat, which starts with a new engine.
        mean_overhead_ms: Its mean.
        device_ms: Median of `Step.device`.
        target_ms: Median time in the target's forward pass.
        draft_ms: Median time in forward passes of the draft model and the draft head.
        rows: Mean number of rows per step.
        tokens: Mean number of new tokens per request and step.
    """

    drafter: str
    batch: int
    steps: int
    overhead_ms: float
    repeats_ms: list[float]
    mean_overhead_ms: float
    device_ms: float
    target_ms: float
    draft_ms: float
    rows: float
    tokens: float

    @staticmethod
    def of(drafter: str, batch: int, repeats: Sequence[Sequence[Step]]) -> Overhead:
        """Summarise the steps of all repeats."""
        steps = [step for repeat in repeats for step in repeat]
        timings = [step.timing for step in steps]
        return Overhead(
            drafter,
            batch,
            len(steps),
            1e3 * median(step.overhead for step in steps),
            [1e3 * median(step.overhead for step in repeat) for repeat in repeats],
            1e3 * mean(step.overhead for step in steps),
            1e3 * median(step.device for step in steps),
            1e3 * median(timing.target_forward for timing in timings),
            1e3 * median(timing.draft_forward for timing in timings),
            mean(step.rows for step in steps),
            mean(step.tokens for step in steps) / batch,
        )

    def __str__(self) -> str:
        return (
            f"{self.drafter:18s} batch {self.batch:2d}: {self.overhead_ms:5.2f} ms"
            f" (mean {self.mean_overhead_ms:5.2f}); device {self.device_ms:4.2f}, target"
            f" {self.target_ms:5.2f}, drafts {self.draft_ms:4.2f} ms; {self.rows:5.1f} rows,"
            f" {self.tokens:4.2f} tokens per request; {self.steps} steps"
        )


class DeviceClock:
    """Times the operations of the CPU backend that would run on a GPU.

    Attributes:
        seconds: Total seconds.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        backend: Any = cpu_backend()
        make_mover = backend.row_mover
        backend.argmax, backend.topk = self.timed(backend.argmax), self.timed(backend.topk)
        backend.row_mover = lambda stores: self.timed(make_mover(stores))

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added to `seconds`."""

        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="after")
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    clock, results = DeviceClock(), []
    for drafter in args.drafters.split(","):
        for batch in map(int, args.batches.split(",")):
            repeats = [
                list(measured_steps(clock, drafter, batch, args.rounds, args.tokens))
                for _ in range(args.repeats)
            ]
            results.append(Overhead.of(drafter, batch, repeats))
            print(results[-1], flush=True)
    if args.json is not None:
        save(args.json, args.label, results)


def measured_steps(
    clock: DeviceClock, drafter: str, batch: int, rounds: int, tokens: int
) -> Iterator[Step]:
    """Yield the decode steps of full batches; a first batch warms up caches and tables.

    Args:
        clock: Clock of device operations.
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
        steps = list(decode_steps(clock, llm, chosen, params))
        if turn:
            yield from steps


def decode_steps(
    clock: DeviceClock, llm: LLM, prompts: list[list[int]], params: SamplingParams
) -> Iterator[Step]:
    """Answer a batch, and yield its decode steps while no request has ended."""
    groups = llm._inputs.request_groups(prompts, params)
    engine: Engine = llm._engine
    handles = engine.submit([request for group in groups for request in group])
    while not any(handle.done for handle in handles):
        decodes = all(handle.request.output_ids for handle in handles)
        before, device, length = engine.timing, clock.seconds, num_tokens(handles)
        engine.step()
        if decodes:
            rows = sum(handle.request.counters.query_tokens[-1] for handle in handles)
            new_tokens = num_tokens(handles) - length
            yield Step(engine.timing - before, clock.seconds - device, rows, new_tokens)
    engine.finish(handles)


def num_tokens(handles: Sequence[RequestHandle]) -> int:
    return sum(len(handle.request) for handle in handles)


def prompt_ids(tokenizer: Any) -> list[list[int]]:
    """Return the token ids of the embedded prompts, cut to a common maximum length."""
    lines = demo.PROMPTS.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["turns"][0] for line in lines]
    return [tokenizer(text)["input_ids"][:MAX_PROMPT] for text in texts]


def save(path: Path, label: str, results: Sequence[Overhead]) -> None:
    """Store the results under a label; replace earlier results of the same drafter and
    batch.
    """
    runs = json.loads(path.read_text())["runs"] if path.exists() else {}
    new = {(result.drafter, result.batch): asdict(result) for result in results}
    kept = [
        known
        for known in runs.get(label, {"results": []})["results"]
        if (known["drafter"], known["batch"]) not in new
    ]
    environment = asdict(look_around(torch.device("cpu")))
    runs[label] = {"environment": environment, "results": [*kept, *new.values()]}
    content = {"schema": 1, "kind": "step-overhead", "runs": runs}
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
