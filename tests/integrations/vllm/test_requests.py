"""Test how batch rows are assigned to requests by their text alone.

Rows move, wait, are prefilled in chunks, and miss calls.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.integrations.vllm import Proposer
from paceline.integrations.vllm.requests import MAX_MISSED_CALLS, BatchRow, Requests, TrackedRequest
from tests.support.vllm_runner import EOS, Job, Runner, vllm_config


def row(index: int, text: list[int], new: int = 1) -> BatchRow:
    return BatchRow(index, np.array(text, dtype=np.int32), new)


def known(*texts: list[int]) -> tuple[Requests, list[TrackedRequest]]:
    """Return requests with these texts in rows 0, 1, ..."""
    requests = Requests()
    made = []
    for index, text in enumerate(texts):
        request = TrackedRequest(row(index, text))
        request.extend(row(index, text), len(text))
        made.append(request)
    requests.record_rows(dict(enumerate(made)))
    return requests, made


def test_moved_rows_are_recognised() -> None:
    requests, (one, two, three) = known([1, 2, 3], [4, 5], [6, 7, 8, 9])
    rows = [
        row(0, [6, 7, 8, 9, 1]),
        row(1, [4, 5, 1, 2], 2),
        row(2, [1, 2, 3, 1]),
        row(3, [1, 2, 4, 1]),
    ]
    assert requests.claim(rows) == [three, two, one, None]


@pytest.mark.parametrize("text", [[1, 2, 4, 9], [1, 2, 9], [9, 2, 3, 9], [1, 2, 3, 5, 9]])
def test_another_text_is_another_request(text: list[int]) -> None:
    requests, _ = known([1, 2, 3])
    assert requests.claim([row(0, text)]) == [None]


def test_missed_steps_are_allowed_only_up_to_the_gap() -> None:
    requests, (one,) = known([1, 2, 3])
    assert requests.claim([row(0, [1, 2, 3, 4, 5, 6])]) == [None]
    assert requests.claim([row(0, [1, 2, 3, 4, 5, 6])], gap=2) == [one]
    assert requests.claim([row(0, [1, 2, 3, 4, 5, 6, 7])], gap=2) == [None]


def test_a_request_is_assigned_to_one_row() -> None:
    requests, (one,) = known([1, 2, 3])
    assert requests.claim([row(1, [1, 2, 3, 4]), row(0, [1, 2, 3, 4])]) == [None, one]


def test_absent_requests_count_as_finished() -> None:
    requests, (one, two) = known([1, 2], [3, 4])
    for turn in range(MAX_MISSED_CALLS):
        text = [3, 4, *[5] * (turn + 1)]
        (found,) = requests.claim([row(0, text)])
        assert found is two
        found.extend(row(0, text), len(text))
        gone = requests.record_rows({0: two})
        assert gone == ([one] if turn == MAX_MISSED_CALLS - 1 else [])


@dataclass(frozen=True, slots=True)
class RecordingDrafterOptions:
    """Options of the spy, of which there are none."""


class RecordingDrafter(Drafter):
    """Drafter that records its requests and drafts likely test tokens."""

    name = "spy"
    Options = RecordingDrafterOptions
    made: list[RecordingDrafter] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.open: dict[int, Request] = {}
        self.texts: dict[int, list[list[int]]] = {}
        RecordingDrafter.made.append(self)

    @classmethod
    def build(cls, options: RecordingDrafterOptions) -> RecordingDrafter:
        return cls()

    def start(self, seq: Request) -> None:
        self.open[seq.id] = seq
        self.texts[seq.id] = [seq.token_ids[:]]

    def propose(self, seqs: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        for seq in seqs:
            self.texts[seq.id].append(seq.token_ids[:])
        return [
            DraftTree.chain([(seq.token_ids[-1] * 7 + 3) % 200 + 10] * 2, confidence=[0.9, 0.1])
            for seq in seqs
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            generated = outcome.new_token_ids
            assert outcome.request.token_ids[-len(generated) :] == generated
            assert generated[: len(outcome.accepted)] == [
                outcome.tree.token_ids[node] for node in outcome.accepted
            ]

    def stop(self, seq: Request) -> None:
        del self.open[seq.id]


def recording_proposer(**options: Any) -> tuple[Proposer, RecordingDrafter]:
    proposer = Proposer(
        vllm_config({"drafter": f"{__name__}:RecordingDrafter", "length": "full"}, **options)
    )
    RecordingDrafter.made[-1].texts.clear()
    return proposer, RecordingDrafter.made[-1]


def jobs(count: int, rng: random.Random, end: bool = True) -> list[Job]:
    made = []
    for _ in range(count):
        answer = [rng.randrange(10, 210)]
        while len(answer) < rng.randrange(8, 40):
            answer.append(
                (answer[-1] * 7 + 3) % 200 + 10 if rng.random() < 0.6 else rng.randrange(10, 210)
            )
        made.append(
            Job([rng.randrange(10, 210) for _ in range(rng.randrange(1, 30))], answer + [EOS] * end)
        )
    return made


@pytest.mark.parametrize("seed", range(4))
def test_every_request_is_tracked_as_one(seed: int) -> None:
    """Rows move, wait and return, and some prompts are prefilled in chunks.

    Half of the seeds have two equal requests.
    """
    rng = random.Random(seed)
    proposer, spy = recording_proposer()
    waiting = jobs(30, rng)
    if seed % 2:
        waiting.insert(3, Job(waiting[2].prompt, waiting[2].answer))
    everyone = [*waiting]
    runner = Runner(proposer, rows=6, chunk=7 if seed < 2 else 0)
    while waiting or runner.batch:
        while waiting and None in runner.rows:
            runner.put(waiting.pop(0))
        if rng.random() < 0.2 and len(runner.batch) > 1:
            runner.swap(0, len(runner.batch) - 1)
        if rng.random() < 0.1 and len(runner.batch) > 2:
            waiting.insert(0, runner.take(rng.randrange(len(runner.batch))))
        runner.step()
    assert all(job.generated == len(job.answer) for job in everyone)
    assert sum(job.accepted for job in everyone) > 100
    assert not spy.open, "the drafter has open requests"
    assert len(spy.texts) == len(everyone), "a request was split or started twice"
    whole = sorted([*job.prompt, *job.answer] for job in everyone)
    for texts in spy.texts.values():
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(texts)), (
            "a sequence changed its text"
        )
    generated = sorted(text for job in everyone for text in [[*job.prompt, *job.answer]])
    assert generated == whole


def test_requests_survive_missed_calls_near_the_context_end() -> None:
    """vLLM calls no drafter while any row is near `max_model_len`."""
    proposer, spy = recording_proposer(context=64)
    near = Job([11] * 40, [*range(20, 41), EOS])
    far = Job([12] * 5, [*range(100, 150), EOS])
    runner = Runner(proposer, rows=2, context=64)
    runner.put(near)
    runner.put(far)
    for _ in range(300):
        if not runner.batch:
            break
        close = any(len(job.text) + 1 + 8 > 64 for job in runner.batch)
        runner.step(drafts=not close)
    assert near.done
    assert far.done
    assert len(spy.texts) == 2, "missed calls have split a request"


def test_a_turn_after_a_finished_one_is_a_new_request() -> None:
    proposer, spy = recording_proposer()
    first = Job([11, 12, 13], [21, 22, 23])  # it ends by its length, which vLLM does not report
    second = Job([11, 12, 13, 21, 22, 23, 31, 32], [41, 42, EOS])
    runner = Runner(proposer)
    runner.run([first])
    runner.run([second])
    assert len(spy.texts) == 2
    assert len(spy.open) == 1  # the first request, which may still return
