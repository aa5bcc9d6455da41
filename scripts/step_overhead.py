"""Measure the host time of a decode step outside the models' forward passes.

    python scripts/step_overhead.py [--device replayed] [--drafters auto,sssd]
    [--batches 1,8,32] [--tokens 96] [--rounds 3] [--repeats 3] [--json FILE]

The target is the embedded model. The draft budget gets a flat cost curve, so trees become as large
as on a GPU. Times are CPU time of the engine's thread, because other programs share the cores.

With `--device replayed`, the default, the script first runs all steps and records the results of
forward passes and of other work that a GPU would do (`replayed_device.py`). Then it times the same
steps with the recorded results. With `--device cpu`, the same core does this work as well. The time
of forward passes, of finding the likeliest tokens and of moving entries of the KV cache is
subtracted. The times are still longer, because the forward passes evict the host's data from the
processor's caches.

The file holds the results of both devices.
"""

from __future__ import annotations

import time

time.perf_counter = time.thread_time  # before any import that binds the function

import argparse  # noqa: E402
import json  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import torch  # noqa: E402
from overhead_results import Overhead, Step, save  # noqa: E402
from replayed_device import ReplayedDevice  # noqa: E402

from paceline import LLM, SamplingParams, demo  # noqa: E402
from paceline.backend.resolve import cpu_backend  # noqa: E402
from paceline.draft_budget.cost_curve import CostCurve  # noqa: E402
from paceline.engine.engine import Engine  # noqa: E402
from paceline.engine.request_handle import RequestHandle  # noqa: E402

# Seconds of a forward pass by rows, as on a large GPU: rows cost almost nothing.
CURVE = CostCurve((1, 16, 32, 64, 128), (6e-3, 6.05e-3, 6.1e-3, 6.3e-3, 7e-3))
WITH_DRAFT = "+draft"  # suffix of a drafter that also gets the embedded draft model
DRAFTERS = (
    *("none", "prompt_lookup", "sssd", "token_recycling", "lookahead"),
    *("auto", "auto" + WITH_DRAFT, "draft_model" + WITH_DRAFT),
)
MAX_PROMPT = 200  # tokens of a prompt


class DeviceClock:
    """Times the operations of the CPU backend that would run on a GPU, in a `with` block.

    Attributes:
        seconds: Total seconds.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        backend = cpu_backend()
        make_mover = backend.row_mover
        self._patch = patch.multiple(
            backend,
            argmax=self.timed(backend.argmax),
            topk=self.timed(backend.topk),
            row_mover=lambda stores: self.timed(make_mover(stores)),
        )

    def __enter__(self) -> DeviceClock:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

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
    parser.add_argument("--device", choices=("replayed", "cpu"), default="replayed")
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    repeated = replayed_repeats if args.device == "replayed" else computed_repeats
    results = []
    for drafter in args.drafters.split(","):
        for batch in map(int, args.batches.split(",")):
            run = Run(drafter, batch, args.rounds, args.tokens)
            results.append(Overhead.of(drafter, batch, repeated(run, args.repeats)))
            print(results[-1], flush=True)
    if args.json is not None:
        save(args.json, args.device, results)


@dataclass(frozen=True, slots=True)
class Run:
    """Answers of one drafter at one batch size.

    Attributes:
        drafter: Spec of the drafter.
        batch: Number of requests.
        rounds: Number of measured batches; one more warms up caches and tables.
        tokens: Number of tokens per answer.
    """

    drafter: str
    batch: int
    rounds: int
    tokens: int

    def steps(self, step: Callable[[Engine, list[RequestHandle]], Step]) -> list[Step]:
        """Run a new engine, and return its decode steps with full batches.

        Args:
            step: Function that runs one step of an engine and measures it.
        """
        llm = LLM(
            demo.TARGET,
            self.drafter.removesuffix(WITH_DRAFT),
            draft_model="demo" if self.drafter.endswith(WITH_DRAFT) else None,
            dtype="float32",
            device="cpu",
            max_batch=self.batch,
            batch_invariant=False,
            cost_curve=CURVE,
        )
        prompts = prompt_ids(llm.tokenizer)
        params = SamplingParams(self.tokens, ignore_eos=True)
        steps: list[Step] = []
        for turn in range(1 + self.rounds):
            first = turn * self.batch
            chosen = [prompts[(first + index) % len(prompts)] for index in range(self.batch)]
            measured = list(decode_steps(step, llm, chosen, params))
            steps += measured if turn else []
        return steps


def replayed_repeats(run: Run, repeats: int) -> list[list[Step]]:
    """Record a run, and time its replays.

    Args:
        run: Answers to measure.
        repeats: Number of replays.
    Raises:
        RuntimeError: The engine decided otherwise than in the recording.
    """
    device = ReplayedDevice()
    try:
        recorded = run.steps(replayed_step)
        results = []
        for _ in range(repeats):
            device.rewind()
            results.append(run.steps(replayed_step))
            device.check_end()
            if list(map(Step.counts, results[-1])) != list(map(Step.counts, recorded)):
                raise RuntimeError(f"{run.drafter}: the replay differs from the recording.")
    finally:
        device.close()
    return results


def replayed_step(engine: Engine, handles: list[RequestHandle]) -> Step:
    """Run and time a step without device work."""
    length, start = num_tokens(handles), time.perf_counter()
    engine.step()
    seconds = time.perf_counter() - start
    return Step(seconds, 0.0, 0.0, 0.0, num_rows(handles), num_tokens(handles) - length)


def computed_repeats(run: Run, repeats: int) -> list[list[Step]]:
    """Time a run whose forward passes are computed on the same core.

    Args:
        run: Answers to measure.
        repeats: Number of runs, each with a new engine.
    """

    def step(engine: Engine, handles: list[RequestHandle]) -> Step:
        before, device, length = engine.timing, clock.seconds, num_tokens(handles)
        engine.step()
        timing = engine.timing - before
        return Step(
            timing.step,
            timing.target_forward,
            timing.draft_forward,
            clock.seconds - device,
            num_rows(handles),
            num_tokens(handles) - length,
        )

    with DeviceClock() as clock:
        return [run.steps(step) for _ in range(repeats)]


def decode_steps(
    step: Callable[[Engine, list[RequestHandle]], Step],
    llm: LLM,
    prompts: list[list[int]],
    params: SamplingParams,
) -> Iterator[Step]:
    """Answer a batch, and yield its decode steps while no request has ended."""
    groups = llm._inputs.request_groups(prompts, params)
    engine: Engine = llm._engine
    handles = engine.submit([request for group in groups for request in group])
    while not any(handle.done for handle in handles):
        decodes = all(handle.request.output_ids for handle in handles)
        measured = step(engine, handles)
        if decodes:
            yield measured
    engine.finish(handles)


def num_rows(handles: Sequence[RequestHandle]) -> int:
    """Return the rows of the newest forward pass; 0 before the first one."""
    return sum(sum(handle.request.counters.query_tokens[-1:]) for handle in handles)


def num_tokens(handles: Sequence[RequestHandle]) -> int:
    return sum(len(handle.request) for handle in handles)


def prompt_ids(tokenizer: Any) -> list[list[int]]:
    """Return the token ids of the embedded prompts, cut to a common maximum length."""
    lines = demo.PROMPTS.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["turns"][0] for line in lines]
    return [tokenizer(text)["input_ids"][:MAX_PROMPT] for text in texts]


if __name__ == "__main__":
    main()
