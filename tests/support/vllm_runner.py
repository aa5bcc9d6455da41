"""Simulate vLLM's model runner as a drafter sees it, without vLLM.

Rows move, wait, and are computed in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

EOS = 2


def vllm_config(
    paceline: dict[str, Any] | None = None,
    most: int = 8,
    context: int = 256,
    vocab: int = 256,
    **rank: int,
) -> Any:
    """Return a stub `VllmConfig` with the fields that the drafter reads."""
    return SimpleNamespace(
        additional_config=None if paceline is None else {"paceline": paceline},
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        parallel_config=SimpleNamespace(
            rank=rank.get("rank", 0), tensor_parallel_size=rank.get("size", 1)
        ),
        model_config=SimpleNamespace(
            max_model_len=context,
            get_vocab_size=lambda: vocab,
            try_get_generation_config=lambda: {"eos_token_id": EOS},
            hf_config=SimpleNamespace(eos_token_id=[EOS]),
            model="tiny",
            is_hybrid=False,
            is_attention_free=False,
            tokenizer=None,
        ),
    )


@dataclass
class Job:
    """A request with its scripted output.

    `generated` counts the output tokens so far, and `to_compute` the prompt tokens not computed.
    """

    prompt: list[int]
    answer: list[int]
    generated: int = 0
    draft: list[int] = field(default_factory=list)
    to_compute: int = 0
    steps: int = 0
    accepted: int = 0
    drafted: int = 0

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.answer[: self.generated]]

    @property
    def done(self) -> bool:
        return self.generated >= len(self.answer)

    def sample(self) -> list[int]:
        """Run one step: return the correct part of the draft and one more token."""
        rest = self.answer[self.generated :]
        most = min(len(self.draft), len(rest))
        right = next((at for at in range(most) if self.draft[at] != rest[at]), most)
        new = rest[: right + 1]
        self.steps += 1
        self.drafted += len(self.draft)
        self.accepted += min(right, len(new) - 1)
        self.generated += len(new)
        self.draft = []
        return new


class Runner:
    """Runs the steps of a batch with a drafter.

    Args:
        chunk: Prompt tokens computed in a step; 0 = all at once.
    """

    def __init__(self, proposer: Any, rows: int = 8, context: int = 256, chunk: int = 0) -> None:
        self.proposer, self.chunk = proposer, chunk
        self.rows: list[Job | None] = [None] * rows
        self.token_ids = np.zeros((rows, context), dtype=np.int32)
        self.sizes = np.zeros(rows, dtype=np.int32)
        self.drafts: list[list[int]] = []

    @property
    def batch(self) -> list[Job]:
        return [job for job in self.rows if job is not None]

    def put(self, job: Job) -> None:
        """Add a request in the first free row; its text is computed again."""
        job.to_compute, job.draft = len(job.text), []
        self.rows[self.rows.index(None)] = job

    def take(self, row: int) -> Job:
        """Remove a request that is preempted, aborted or finished.

        The last row moves to its index.
        """
        job, last = self.rows[row], len(self.batch) - 1
        assert job is not None
        self.rows[row], self.rows[last] = self.rows[last], None
        return job

    def swap(self, one: int, other: int) -> None:
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def step(self, drafts: bool = True) -> None:
        """Run one forward pass, then remove finished requests.

        Args:
            drafts: Whether the drafter is called.
        """
        sampled: list[list[int]] = []
        for row, job in enumerate(self.batch):
            job.to_compute = max(0, job.to_compute - (self.chunk or job.to_compute))
            sampled.append([] if job.to_compute else job.sample())
            text = job.text
            self.token_ids[row, : len(text)], self.sizes[row] = text, len(text)
        if drafts:
            self.drafts = self.proposer.propose(
                sampled, self.sizes, self.token_ids, slot_mappings=None
            )
            for job, draft in zip(self.batch, self.drafts, strict=True):
                job.draft = draft
        for row in reversed(range(len(self.batch))):
            if self.rows[row].done:  # type: ignore[union-attr]
                self.take(row)

    def run(self, jobs: Sequence[Job], most: int = 100_000) -> None:
        """Run steps until all requests are done."""
        waiting = [*jobs]
        for _ in range(most):
            while waiting and None in self.rows:
                self.put(waiting.pop(0))
            if not self.batch:
                return
            self.step()
        raise AssertionError("not done")
