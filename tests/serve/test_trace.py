"""Test the traces of decoding steps that the web page shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline import LLM, DraftTree, Outcome, SamplingParams, demo
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.serve.tally import Tally
from paceline.serve.trace import node_outcomes, step
from tests.support.serving import KEY, Served

PROMPT = "A ferry carries 36 cars on each trip. How many cars does the ferry carry on 8 trips?"
TREE = DraftTree(
    [5, 6, 7, 8, 9, 5],
    [-1, 0, 0, 1, -1, 3],
    confidence=[0.9] * 6,
    probes=1,
    origins=[Origin.PROMPT] * 6,
)


def outcome(accepted: list[int], new: list[int]) -> Outcome:
    return Outcome(Request([1], SamplingParams()), TREE, accepted, new, [0] * 7)


@pytest.fixture(scope="module")
def drafting() -> LLM:
    """Return an engine that always drafts."""
    return LLM(demo.TARGET, "prompt_lookup:budget=false", dtype="float32")


@pytest.mark.parametrize(
    ("accepted", "new", "fates", "instead"),
    [
        ([], [4], "other parent parent parent other probe", [0, None, None, None, 0, None]),
        ([0], [5, 4], "accepted other other parent other probe", [None, 1, 1, None, 0, None]),
        (
            [0, 1, 3],
            [5, 6, 8, 4],
            "accepted accepted other accepted other probe",
            [None, None, 1, None, 0, None],
        ),
        ([0], [5], "accepted end end parent other probe", [None, None, None, None, 0, None]),
        (
            [0, 1, 3],
            [5, 6],
            "accepted accepted other end other probe",
            [None, None, 1, None, 0, None],
        ),
    ],
)
def test_outcomes_of_tree_nodes(
    accepted: list[int], new: list[int], fates: str, instead: list[int | None]
) -> None:
    assert node_outcomes(outcome(accepted, new)) == (fates.split(), instead)


def test_steps_add_up_to_the_output(drafting: LLM) -> None:
    """Check that steps add up to the output, with the accepted nodes."""
    tally, text, tokens = Tally(), "", []
    for chunk in drafting.stream(PROMPT, SamplingParams(40, stop=("zzz",))):
        shown = json.loads(json.dumps(step(chunk, drafting.tokenizer)))
        assert chunk.outcome is not None
        tally.add(chunk.outcome)
        text += "".join(piece["text"] for piece in shown["pieces"])
        tokens += shown["tokens"]
        tree = shown["tree"]
        if tree is not None:
            path = [node for node, fate in enumerate(tree["status"]) if fate == "accepted"]
            assert [tree["tokens"][node] for node in path] == shown["tokens"][: len(path)]
            assert [tree["origins"][node] for node in path] == shown["origins"][: len(path)]
            assert len({len(column) for column in tree.values()}) == 1
            others = [
                (tree["tokens"][node], index)
                for node, index in enumerate(tree["target_token"])
                if index is not None
            ]
            assert all(token != shown["tokens"][index] for token, index in others)
        assert ("done" in shown) == (chunk.completion is not None)
    assert chunk.completion is not None
    assert (text, tokens) == (chunk.completion.text, chunk.completion.token_ids)
    stats = chunk.completion.stats
    assert (shown["done"]["new_tokens"], shown["forwards"]) == (
        stats.new_tokens,
        stats.target_forwards,
    )
    assert shown["done"]["batch_invariant"] is stats.batch_invariant
    rows = {str(row["origin"]): row for row in tally.rows()}
    assert sum(int(row["drafted"]) for row in rows.values()) == stats.drafted_tokens
    assert (
        sum(int(row["accepted"]) for name, row in rows.items() if name != "target")
        == stats.accepted_tokens
        > 0
    )
    assert rows["target"]["accepted"] == stats.new_tokens - stats.accepted_tokens
    assert rows.keys() <= {"target", "prompt", "output"}


def test_events_have_a_trace_on_request(server: Served) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "max_tokens": 12,
        "temperature": 0,
    }
    texts = []
    for trace in (False, True):
        answer = server.post(
            "/v1/chat/completions",
            {**body, "trace": trace},
            headers={"authorization": f"Bearer {KEY}"},
        ).text
        events = [
            json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")
        ]
        assert any("paceline" in event for event in events) == trace
        texts.append("".join(event["choices"][0]["delta"]["content"] or "" for event in events))
        if trace:
            pieces = [
                piece["text"]
                for event in events
                for piece in event.get("paceline", {}).get("pieces", [])
            ]
            assert "".join(pieces) == texts[0] == texts[1]
