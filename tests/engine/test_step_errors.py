"""Test errors in the steps of an engine: they reach only the requests that they concern."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline import LLM, Drafter, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.engine.engine import Engine
from paceline.errors import DrafterError
from tests.support.shared import COUNT, Pair

LONG = SamplingParams(max_new_tokens=COUNT)


class FailsAtProposal(Drafter):
    """Drafter that fails at the n-th proposal."""

    name = "breaks"

    def __init__(self, at: int) -> None:
        self._left = at

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        self._left -= 1
        if self._left == 0:
            raise DrafterError("broken")
        return [EMPTY_TREE] * len(requests)


def test_error_ends_only_the_requests_of_its_step(pair: Pair) -> None:
    llm = LLM(pair.target, FailsAtProposal(5), max_batch=1)
    stream = llm.stream(pair.prompts[0], LONG)
    next(stream)
    assert (
        llm.generate([pair.prompts[1]], LONG)[0].token_ids == pair.answers[1]
    )  # it waited while the stream's step failed
    with pytest.raises(DrafterError, match="broken"):
        list(stream)
    assert llm.model.open_sequences == 0


def test_error_is_raised_in_the_call_of_its_request(pair: Pair) -> None:
    engine = Engine(pair.target, FailsAtProposal(4), max_batch=1)
    first, second = engine.submit([Request(prompt, LONG) for prompt in pair.prompts[:2]])
    while not first.done:
        engine.step()  # as another caller would
    with pytest.raises(DrafterError, match="broken"):
        engine.finish([first, second])
    engine.finish([second])
    assert second.request.output_ids == pair.answers[1]


def test_cache_that_cannot_grow_ends_waiting_requests(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(slots: int, positions: int) -> None:
        raise MemoryError("no room")

    llm = pair.engine("none")
    with monkeypatch.context() as patch:
        patch.setattr(llm.model.slots, "resize", full)
        with pytest.raises(MemoryError, match="no room"):
            llm.generate(pair.prompts[:2], LONG)
    assert llm.generate([pair.prompts[0]], LONG)[0].token_ids == pair.answers[0]
    assert llm.model.open_sequences == 0


class FailsAtStop(Drafter):
    """Drafter whose `stop` fails for its first request."""

    name = "stop fails"

    def __init__(self) -> None:
        self.bad: list[int] = []

    def start(self, request: Request) -> None:
        self.bad = self.bad or [request.id]

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [EMPTY_TREE] * len(requests)

    def stop(self, request: Request) -> None:
        if request.id in self.bad:
            raise OSError("disk full")


def test_error_in_stop_affects_its_own_request_only(pair: Pair) -> None:
    engine = Engine(pair.target, FailsAtStop())
    requests = [Request(prompt, LONG) for prompt in pair.prompts[:3]]
    handles = engine.submit(requests)
    while engine.unfinished:
        engine.step()
    assert [type(handle.error) for handle in handles] == [OSError, type(None), type(None)]
    assert all(handle.done for handle in handles)
    assert [request.output_ids for request in requests] == pair.answers[:3]
    assert engine.model.open_sequences == 0
