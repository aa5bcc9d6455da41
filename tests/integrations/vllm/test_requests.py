"""Which row is which request: by the text alone, through moves, waiting, chunks and steps nobody
was told of.
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


def row(place: int, text: list[int], new: int = 1) -> BatchRow:
    return BatchRow(place, np.array(text, dtype=np.int32), new)


def known(*texts: list[int]) -> tuple[Requests, list[TrackedRequest]]:
    """Requests whose texts are these, in rows 0, 1, ..."""
    requests = Requests()
    made = []
    for place, text in enumerate(texts):
        request = TrackedRequest(row(place, text))
        request.extend(row(place, text), len(text))
        made.append(request)
    requests.record_rows(dict(enumerate(made)))
    return requests, made


def test_rows_are_found_where_they_went() -> None:
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


def test_steps_that_were_missed_only_where_they_may_have_been() -> None:
    requests, (one,) = known([1, 2, 3])
    assert requests.claim([row(0, [1, 2, 3, 4, 5, 6])]) == [None]
    assert requests.claim([row(0, [1, 2, 3, 4, 5, 6])], gap=2) == [one]
    assert requests.claim([row(0, [1, 2, 3, 4, 5, 6, 7])], gap=2) == [None]


def test_one_request_is_not_two_rows() -> None:
    requests, (one,) = known([1, 2, 3])
    assert requests.claim([row(1, [1, 2, 3, 4]), row(0, [1, 2, 3, 4])]) == [None, one]


def test_who_stays_away_has_finished() -> None:
    requests, (one, two) = known([1, 2], [3, 4])
    for turn in range(MAX_MISSED_CALLS):
        text = [3, 4, *[5] * (turn + 1)]
        (found,) = requests.claim([row(0, text)])
        assert found is two
        found.extend(row(0, text), len(text))
        gone = requests.record_rows({0: two})
        assert gone == ([one] if turn == MAX_MISSED_CALLS - 1 else [])


@dataclass(frozen=True, slots=True)
class SpyOptions:
    """None."""


class Spy(Drafter):
    """Notes what it is told, and guesses what the answers are made of."""

    name = "spy"
    Options = SpyOptions
    made: list[Spy] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.open: dict[int, Request] = {}
        self.texts: dict[int, list[list[int]]] = {}
        Spy.made.append(self)

    @classmethod
    def build(cls, options: SpyOptions) -> Spy:
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


def spied(**options: Any) -> tuple[Proposer, Spy]:
    proposer = Proposer(vllm_config({"drafter": f"{__name__}:Spy", "length": "full"}, **options))
    Spy.made[-1].texts.clear()
    return proposer, Spy.made[-1]


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
def test_every_request_is_one_and_is_seen_whole(seed: int) -> None:
    """Rows that move, wait and come back, prompts in chunks; half of the seeds with two requests
    that say the same.
    """
    rng = random.Random(seed)
    proposer, spy = spied()
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
    assert not spy.open, "state is left"
    assert len(spy.texts) == len(everyone), "a request was split, or begun twice"
    whole = sorted([*job.prompt, *job.answer] for job in everyone)
    for texts in spy.texts.values():
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(texts)), (
            "a sequence changed its text"
        )
    generated = sorted(text for job in everyone for text in [[*job.prompt, *job.answer]])
    assert generated == whole


def test_steps_without_a_question_near_the_end_of_the_context() -> None:
    """vLLM asks nobody while a row is close to `max_model_len`; the others go on, and stay who
    they are.
    """
    proposer, spy = spied(context=64)
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
    assert len(spy.texts) == 2, "what was missed has split a request"


def test_a_turn_that_repeats_a_finished_one_begins_anew() -> None:
    proposer, spy = spied()
    first = Job([11, 12, 13], [21, 22, 23])  # ends by its length: nobody says so
    second = Job([11, 12, 13, 21, 22, 23, 31, 32], [41, 42, EOS])
    runner = Runner(proposer)
    runner.run([first])
    runner.run([second])
    assert len(spy.texts) == 2
    assert len(spy.open) == 1  # the first: it may still come back
