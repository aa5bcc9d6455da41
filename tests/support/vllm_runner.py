"""vLLM's model runner as its drafter sees it, without vLLM: rows that move, wait, are computed
in chunks, and say what is due.
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
    """As much of a `VllmConfig` as is read."""
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
    """A request: its prompt, what it is going to say, how much of it was said, what is drafted,
    and prompt tokens to compute.
    """

    prompt: list[int]
    answer: list[int]
    said: int = 0
    draft: list[int] = field(default_factory=list)
    to_compute: int = 0
    steps: int = 0
    accepted: int = 0
    drafted: int = 0

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.answer[: self.said]]

    @property
    def done(self) -> bool:
        return self.said >= len(self.answer)

    def say(self) -> list[int]:
        """One step: the part of the draft that is right, and one token more."""
        rest = self.answer[self.said :]
        most = min(len(self.draft), len(rest))
        right = next((place for place in range(most) if self.draft[place] != rest[place]), most)
        new = rest[: right + 1]
        self.steps += 1
        self.drafted += len(self.draft)
        self.accepted += min(right, len(new) - 1)
        self.said += len(new)
        self.draft = []
        return new


class Runner:
    """Steps a batch with a drafter.

    Args:
        chunk: prompt tokens computed in a step; 0 = all at once.
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
        """Into the first free row; its text is to be computed."""
        job.to_compute, job.draft = len(job.text), []
        self.rows[self.rows.index(None)] = job

    def take(self, row: int) -> Job:
        """Out of the batch: it was put back to wait, was aborted, or has finished. The last row
        moves to its place.
        """
        job, last = self.rows[row], len(self.batch) - 1
        assert job is not None
        self.rows[row], self.rows[last] = self.rows[last], None
        return job

    def swap(self, one: int, other: int) -> None:
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def step(self, told: bool = True) -> None:
        """One forward; those that have said everything leave afterwards. told: whether the
        drafter is asked.
        """
        sampled: list[list[int]] = []
        for row, job in enumerate(self.batch):
            job.to_compute = max(0, job.to_compute - (self.chunk or job.to_compute))
            sampled.append([] if job.to_compute else job.say())
            text = job.text
            self.token_ids[row, : len(text)], self.sizes[row] = text, len(text)
        if told:
            self.drafts = self.proposer.propose(
                sampled, self.sizes, self.token_ids, slot_mappings=None
            )
            for job, draft in zip(self.batch, self.drafts, strict=True):
                job.draft = draft
        for row in reversed(range(len(self.batch))):
            if self.rows[row].done:  # type: ignore[union-attr]
                self.take(row)

    def run(self, jobs: Sequence[Job], most: int = 100_000) -> None:
        """Until all of them are done."""
        waiting = [*jobs]
        for _ in range(most):
            while waiting and None in self.rows:
                self.put(waiting.pop(0))
            if not self.batch:
                return
            self.step()
        raise AssertionError("not done")
