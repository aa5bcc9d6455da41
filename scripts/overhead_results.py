"""Summarise and store the times of decode steps that scripts/step_overhead.py measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import torch

from paceline.bench.environment import look_around


@dataclass(frozen=True, slots=True)
class Step:
    """Times and counts of one decode step.

    Attributes:
        seconds: Seconds of the whole step.
        target: Seconds of the target's forward pass; 0 if it was replayed.
        drafts: Seconds of forward passes of the draft model and the draft head; 0 if replayed.
        device: Seconds of other operations that would run on a GPU; 0 if they were replayed.
        rows: Tokens and draft nodes that the target computed, without padding.
        tokens: New tokens.
    """

    seconds: float
    target: float
    drafts: float
    device: float
    rows: int
    tokens: int

    @property
    def overhead(self) -> float:
        """Seconds outside forward passes and other operations that would run on a GPU."""
        return self.seconds - self.target - self.drafts - self.device

    def counts(self) -> tuple[int, int]:
        """Return the number of rows and of new tokens."""
        return self.rows, self.tokens


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
        return Overhead(
            drafter,
            batch,
            len(steps),
            1e3 * median(step.overhead for step in steps),
            [1e3 * median(step.overhead for step in repeat) for repeat in repeats],
            1e3 * mean(step.overhead for step in steps),
            1e3 * median(step.device for step in steps),
            1e3 * median(step.target for step in steps),
            1e3 * median(step.drafts for step in steps),
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


def save(path: Path, device: str, results: Sequence[Overhead]) -> None:
    """Store the results of a device; replace earlier results of the same drafter and batch."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else {}
    new = {(result.drafter, result.batch): asdict(result) for result in results}
    kept = [
        known
        for known in runs.get(device, {"results": []})["results"]
        if (known["drafter"], known["batch"]) not in new
    ]
    environment = asdict(look_around(torch.device("cpu")))
    runs[device] = {"environment": environment, "results": [*kept, *new.values()]}
    content = {"schema": 1, "kind": "step-overhead", "runs": runs}
    path.write_text(json.dumps(content, indent=1) + "\n")
