"""Test the verdict on a benchmark: the fastest drafter, if the times are steady."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from paceline.bench import BenchConfig, BenchResult, markdown
from paceline.bench.bench_settings import DISTURBED_RATIO, OPPOSITE_RATIO
from paceline.bench.environment import look_around
from paceline.bench.timed_calls import AnswerRow, TimedCall
from paceline.bench.verdict import _ranking, _RelativeSpeed, verdict


@dataclass(frozen=True)
class Run:
    """A run with given speeds.

    Attributes:
        speeds: Tokens per second of each method.
        cpu: Tokens per second of processor time; those of elapsed time if a method is not listed.
        prompts: Number of prompts, all in one batch.
        batch: Requested batch size.
        repeats: Configured number of passes.
        accelerator: Name of the accelerator.
    """

    speeds: dict[str, float]
    cpu: dict[str, float] = dataclasses.field(default_factory=dict)
    prompts: int = 1
    batch: int = 1
    repeats: int = 1
    accelerator: str | None = None

    @property
    def result(self) -> BenchResult:
        """Build the result of the run."""
        row = AnswerRow("a prompt", "chat", 4, 100, None, None)
        calls = [
            TimedCall(
                name, 0, 0, tokens / speed, tokens / self.cpu.get(name, speed), None, None, ()
            )
            for name, speed in self.speeds.items()
            for tokens in [100 * self.prompts]
        ]
        methods = tuple(self.speeds)
        environment = look_around(torch.device("cpu"))
        return BenchResult(
            config=BenchConfig(batch=self.batch, repeats=self.repeats),
            environment=dataclasses.replace(environment, accelerator=self.accelerator),
            complete=True,
            target="a model",
            draft=None,
            dtype="float32",
            methods=methods,
            baseline=methods[0],
            reference=None,
            skipped={},
            calls=tuple(dataclasses.replace(call, rows=(row,) * self.prompts) for call in calls),
            divergences=(),
        )

    @property
    def verdict(self) -> str:
        """Return the sentence below the table."""
        return " ".join(verdict(self.result))


def test_the_fastest_drafter_and_all_slower_ones_are_named() -> None:
    best = "The fastest drafter, auto, is 1.20x as fast as plain decoding (none) here."
    assert Run({"none": 100, "auto": 120, "pia": 101}).verdict == best
    slow = Run({"none": 100, "auto": 120, "pia": 36})
    assert slow.verdict == f"{best} Slower than plain decoding: pia (0.36x)."
    assert f"- {slow.verdict}" in markdown(slow.result)
    single = Run({"none": 100, "auto": 116}).verdict
    assert single == "auto is 1.16x as fast as plain decoding (none) here."


def test_the_verdict_begins_with_the_news_that_no_drafter_is_faster() -> None:
    start = "No drafter is faster than plain decoding (none) here. Slower than plain decoding:"
    assert (
        Run({"none": 100, "auto": 93, "pia": 36}).verdict == f"{start} auto (0.93x), pia (0.36x)."
    )
    assert Run({"none": 100, "auto": 93}).verdict == f"{start} auto (0.93x)."


def test_the_verdict_is_relative_to_plain_decoding_whatever_the_baseline() -> None:
    speeds = {"transformers": 10.0, "transformers:prompt_lookup": 8.6, "none": 49.0, "pia": 17.5}
    assert Run(speeds).verdict.endswith("Slower than plain decoding: pia (0.36x).")
    assert Run({"transformers": 10, "none": 49}).verdict == ""
    assert Run({"transformers": 10, "pia": 17.5}).verdict == ""


@pytest.mark.parametrize(("repeats", "option"), [(1, " with --repeats 3"), (3, "")])
def test_disturbed_times_yield_no_verdict(repeats: int, option: str) -> None:
    run = Run({"none": 100, "auto": 149, "pia": 112}, {"auto": 94}, repeats=repeats)
    assert run.verdict == (
        "No verdict: other programs disturbed the times. auto is 1.49x as fast as plain decoding"
        " (none) in elapsed time, but 0.94x in CPU time. Repeat the run on an idle"
        f" machine{option}."
    )


@pytest.mark.parametrize(
    ("elapsed", "cpu", "disturbed"),
    [
        (1.4, 1.4 * DISTURBED_RATIO * 1.01, True),
        (1.4, 1.4 * DISTURBED_RATIO / 1.01, False),
        (1.4, 1.4 / DISTURBED_RATIO / 1.01, True),
        (0.99, 0.99 * OPPOSITE_RATIO * 1.01, True),
        (0.99, 0.99 * OPPOSITE_RATIO / 1.01, False),
        (1.49, 0.94, True),
        (0.63, 0.91, True),
    ],
)
def test_times_are_disturbed_if_elapsed_and_cpu_time_disagree(
    elapsed: float, cpu: float, disturbed: bool
) -> None:
    speeds, processor = {"none": 100, "auto": 100 * elapsed}, {"auto": 100 * cpu}
    assert Run(speeds, processor).verdict.startswith("No verdict: ") == disturbed
    on_gpu = Run(speeds, processor, accelerator="a GPU").verdict
    assert "No verdict" not in on_gpu, "processor time says little about an accelerator"


def test_the_verdict_names_a_batch_that_too_few_prompts_fill() -> None:
    speeds = {"none": 100.0, "auto": 95.0}
    few = Run(speeds, prompts=6, batch=32)
    assert few.verdict.endswith(
        "auto (0.95x). The batch is 6 instead of 32, because there are fewer prompts; use at least"
        " 32 prompts."
    )
    assert "batch 6 (32 requested); " in markdown(few.result)
    full = Run(speeds, prompts=32, batch=32)
    assert full.verdict.endswith("auto (0.95x).")
    assert "batch 32; " in markdown(full.result)


def test_a_drafter_without_accepted_drafts_is_never_called_faster() -> None:
    without, with_drafts = (
        _RelativeSpeed("auto", 1.09, 1.07, per_forward) for per_forward in (1.004, 1.2)
    )
    assert _ranking([without]) == "No drafter is faster than plain decoding (none) here."
    assert _ranking([with_drafts]) == "auto is 1.09x as fast as plain decoding (none) here."
