"""Test drafters that raise, break their contract or guess badly.

A `DrafterError` names them, or the output is correct, and the engine remains usable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from paceline import LLM, Drafter, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.errors import DrafterError, PacelineError
from paceline.integrations.transformers import Strategy
from tests.support.shared import Pair

pytestmark = pytest.mark.hostile
FOUR = SamplingParams(4)
Propose = Callable[[Sequence[Request], list[int]], Any]


class Faulty(Drafter):
    """Drafter that calls the given functions."""

    name = "faulty"

    def __init__(self, propose: Propose, **others: Callable[[Any], Any]) -> None:
        self._propose, self._others = propose, others

    def _other(self, name: str, given: Any) -> None:
        if name in self._others:
            self._others[name](given)

    def start(self, request: Request) -> None:
        self._other("start", request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        made: list[DraftTree] = self._propose(requests, max_nodes)
        return made

    def observe(self, outcomes: Any) -> None:
        self._other("observe", outcomes)

    def stop(self, request: Request) -> None:
        self._other("stop", request)


def fail(error: BaseException) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise error

    return act


def tree(token_ids: Any, parents: Any, **others: Any) -> Propose:
    return lambda requests, max_nodes: [DraftTree(token_ids, parents, **others)] * len(requests)


def with_confidence(of: float) -> Propose:
    return lambda requests, max_nodes: [
        DraftTree([9], [-1], confidence=[of]) if limit else DraftTree([], []) for limit in max_nodes
    ]


def empty(requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
    return [DraftTree([], []) for _ in requests]


def _of(weights: dict[int, float]) -> torch.Tensor:
    found = torch.zeros(256)
    for token, weight in weights.items():
        found[token] = weight
    return found


# Broken contracts, which raise a DrafterError that names the drafter.
BROKEN: dict[str, Propose] = {
    "None": lambda requests, max_nodes: None,
    "a text": lambda requests, max_nodes: "trees",
    "a number": lambda requests, max_nodes: 3,
    "a mapping": lambda requests, max_nodes: {0: DraftTree([], [])},
    "too few": lambda requests, max_nodes: [],
    "too many": lambda requests, max_nodes: [DraftTree([], [])] * (len(requests) + 1),
    "the class": lambda requests, max_nodes: [DraftTree] * len(requests),
    "token ids": lambda requests, max_nodes: [[3]] * len(requests),
    "more nodes than allowed": lambda requests, max_nodes: [
        DraftTree([5] * (limit + 1), list(range(-1, limit))) for limit in max_nodes
    ],
    "no parents": tree([3], []),
    "more parents": tree([3], [-1, 0]),
    "a parent behind": tree([3, 4], [1, -1]),
    "a parent of its own": tree([3], [0]),
    "a parent far away": tree([3], [-2]),
    "fractions for parents": tree([3], [-1.0]),
    "truths for tokens": tree([True], [-1]),
    "text for tokens": tree(["a"], [-1]),
    "a negative token": tree([-1], [-1]),
    "a token too large": tree([256], [-1]),
    "a token of 80 bits": tree([1 << 80], [-1]),
    "equal siblings": tree([3, 3], [-1, -1]),
    "short confidence": tree([3, 4], [-1, 0], confidence=[0.5]),
    "a tensor for confidence": tree([3], [-1], confidence=torch.tensor([0.5])),
    "short probs": tree([3, 4], [-1, 0], probs=[_of({3: 1.0})]),
    "probs of another vocabulary": tree([3], [-1], probs=[torch.ones(7) / 7]),
    "probs of two axes": tree([3], [-1], probs=[torch.ones(1, 256) / 256]),
    "probs that are text": tree([3], [-1], probs=["likely"]),
}

# Valid proposals, however bad. The output is that of the target.
BAD_GUESSES: dict[str, Propose] = {
    "nothing ever": empty,
    "the same token always": lambda requests, max_nodes: [
        DraftTree([7], [-1]) if limit else DraftTree([], []) for limit in max_nodes
    ],
    "a chain to the limit": lambda requests, max_nodes: [
        DraftTree([5] * limit, list(range(-1, limit - 1))) for limit in max_nodes
    ],
    "all children": lambda requests, max_nodes: [
        DraftTree(list(range(min(256, limit))), [-1] * min(256, limit)) for limit in max_nodes
    ],
    "ends of sequence": lambda requests, max_nodes: [
        DraftTree([2] * min(2, limit), [-1, 0][:limit]) for limit in max_nodes
    ],
    "the prompt again": lambda requests, max_nodes: [
        DraftTree(
            request.token_ids[:limit], list(range(-1, min(limit, len(request.token_ids)) - 1))
        )
        for request, limit in zip(requests, max_nodes, strict=True)
    ],
    **{
        f"confidence {one}": with_confidence(one)
        for one in (0.0, 1.0, 1.5, -0.5, float("inf"), float("nan"))
    },
}

ERRORS: list[BaseException] = [
    ValueError("no"),
    KeyError(3),
    IndexError(),
    ZeroDivisionError(),
    RecursionError(),
    MemoryError(),
    StopIteration(),
    AssertionError(),
    OSError(28, "No space left on device"),
    NotImplementedError(),
    DrafterError("drafter 'faulty': of its own"),
]


def check_usable(llm: LLM, pair: Pair) -> None:
    """Check that no request is open and that another drafter still works."""
    assert llm.model.open_sequences == 0
    plain = SamplingParams(4, speculation="none")
    assert llm.generate([pair.prompts[1]], plain)[0].token_ids == pair.answers[1][:4]


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_contracts_are_reported(pair: Pair, fault: str) -> None:
    llm = LLM(pair.target, Faulty(BROKEN[fault]))
    with pytest.raises(DrafterError, match="faulty"):
        llm.generate([pair.prompts[0]], FOUR)
    check_usable(llm, pair)
    with pytest.raises(PacelineError, match="faulty"):
        pair.target.generate(
            torch.tensor([pair.prompts[0]]),
            max_new_tokens=4,
            do_sample=False,
            pad_token_id=0,
            custom_generate=Strategy(Faulty(BROKEN[fault])),
        )


@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize("kind", BAD_GUESSES)
def test_bad_guesses_keep_the_output(pair: Pair, kind: str, budget: bool) -> None:
    drafter = Faulty(BAD_GUESSES[kind])
    drafter.budget = budget
    llm = LLM(pair.target, drafter, max_nodes=32)
    assert [out.token_ids for out in llm.generate(pair.prompts[:3], SamplingParams(20))] == [
        one[:20] for one in pair.answers[:3]
    ]
    check_usable(llm, pair)


@pytest.mark.parametrize("when", ["start", "propose", "observe", "stop"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_engine_survives_errors_of_a_drafter(
    pair: Pair, when: str, error: BaseException
) -> None:
    """The caller gets the drafter's error, and the engine stays usable."""
    drafter = Faulty(fail(error)) if when == "propose" else Faulty(empty, **{when: fail(error)})
    llm = LLM(pair.target, drafter)
    with pytest.raises((type(error), DrafterError, RuntimeError)):
        llm.generate([pair.prompts[0]], FOUR)
    check_usable(llm, pair)


def test_a_failing_drafter_ends_only_its_requests(pair: Pair) -> None:
    llm = LLM(pair.target, Faulty(fail(ValueError("no"))))
    other = llm.stream(pair.prompts[2], SamplingParams(8, speculation="none"))
    ids = list(next(other).token_ids)
    with pytest.raises((ValueError, DrafterError)):
        llm.generate([pair.prompts[0]], FOUR)
    ids += [token for chunk in other for token in chunk.token_ids]
    assert ids == pair.answers[2][:8]
    check_usable(llm, pair)
