"""Test that every registered drafter keeps the drafter contract, and that breaches are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from paceline import LLM, DraftTree, Outcome, SamplingParams, ScriptedDrafter
from paceline.core.request import Request
from paceline.drafters import available
from paceline.drafters.contract import CheckedDrafter, leftovers
from paceline.errors import DrafterError
from tests.support.shared import MOST_SPECS, RAGGED, VARIANTS, Pair, check_aborts


class Watched(CheckedDrafter):
    """Checked drafter that checks the engine's side of the contract too."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            count = len(outcome.new_token_ids)
            assert outcome.request.token_ids[-count:] == outcome.new_token_ids
            assert [
                outcome.tree.token_ids[node] for node in outcome.accepted
            ] == outcome.new_token_ids[: len(outcome.accepted)]
            assert count - len(outcome.accepted) in (0, 1)
            assert len(outcome.target_argmax) == 1 + len(outcome.tree)
        super().observe(outcomes)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        *((name, 0.0) for name in VARIANTS),
        *((name, 1.0) for name in available()),
        *(pytest.param(name, 0.0, marks=pytest.mark.slow) for name in available()),
    ],
)
def test_every_drafter_keeps_the_contract(pair: Pair, name: str, temperature: float) -> None:
    """Check the contract with budgets that differ by sequence and by step."""
    drafter = Watched(pair.engine(name).drafter, 256)  # no draft budget unless the name sets one
    llm = LLM(pair.target, drafter=drafter, max_batch=5)
    before = Request([1], SamplingParams()).id
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=24, temperature=temperature))
    if temperature == 0.0:
        assert [out.token_ids for out in outs] == [answer[:24] for answer in pair.answers]
    assert drafter.empty_on_zero > 10
    assert (drafter.nodes > 0) == (name != "none")
    assert leftovers(drafter, range(before, before + 20)) == []


@pytest.mark.parametrize("budgets", [[20], RAGGED], ids=str)
@pytest.mark.parametrize("name", MOST_SPECS)
def test_an_abort_leaves_no_state(pair: Pair, name: str, budgets: list[int]) -> None:
    check_aborts(pair, pair.engine(name).drafter, budgets)


@pytest.mark.parametrize("name", MOST_SPECS)
def test_zero_nodes_is_plain_decoding(pair: Pair, name: str) -> None:
    llm = pair.engine(name, max_nodes=0)
    (out,) = llm.generate([pair.prompts[1]], SamplingParams(max_new_tokens=12))
    assert out.token_ids == pair.answers[1][:12]
    assert out.stats.drafted_tokens == 0
    assert out.stats.target_forwards == 12
    assert out.stats.tokens_per_forward == 1.0


def same_tree_for_all(*args: Any) -> Callable[[int], list[DraftTree]]:
    return lambda count: [DraftTree(*args)] * count


def constant_drafter(trees: Callable[[int], list[DraftTree]]) -> ScriptedDrafter:
    """Return a drafter that proposes the same trees for every request."""
    return ScriptedDrafter(lambda requests, max_nodes: trees(len(requests)), name="constant")


EVEN = torch.full((256,), 1 / 256)
BREACHES: dict[str, tuple[Callable[[int], list[DraftTree]], str]] = {
    "too many nodes": (
        same_tree_for_all([3] * 9, list(range(-1, 8))),
        r"proposed 9 nodes .* max_nodes was 8",
    ),
    "a later parent": (same_tree_for_all([3, 4], [-1, 1]), r"parents \[-1, 1\]"),
    "a parent below the root": (same_tree_for_all([3, 4], [-1, -2]), r"parents \[-1, -2\]"),
    "fewer parents than nodes": (same_tree_for_all([3, 4], [-1]), "2 token_ids and 1 parents"),
    "no nodes but parents": (same_tree_for_all([], [-1]), "0 token_ids and 1 parents"),
    "twins": (same_tree_for_all([3, 3], [-1, -1]), "two siblings with the same token"),
    "a token too large": (same_tree_for_all([256], [-1]), r"outside 0\.\.255"),
    "a negative token": (same_tree_for_all([-1], [-1]), r"outside 0\.\.255"),
    "a tree too few": (
        lambda count: [DraftTree([], [])] * (count - 1),
        "proposed 1 trees for 2 requests",
    ),
    "a tree too many": (
        lambda count: [DraftTree([], [])] * (count + 1),
        "proposed 3 trees for 2 requests",
    ),
    "a guess before a draw": (
        same_tree_for_all([3, 4], [-1, -1], [None, EVEN]),
        "put sampled nodes first",
    ),
    "probs of another vocabulary": (
        same_tree_for_all([3], [-1], [torch.ones(5)]),
        r"probs of shape \(5,\)",
    ),
    "probs for some nodes only": (
        same_tree_for_all([3, 4], [-1, 0], [EVEN]),
        "1 probs for 2 nodes",
    ),
    "confidence for some nodes only": (
        same_tree_for_all([3, 4], [-1, 0], None, [0.5]),
        "1 confidence for 2 nodes",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_breach_is_named_and_leaves_no_state(pair: Pair, breach: str) -> None:
    trees, rule = BREACHES[breach]
    llm = LLM(pair.target, drafter=constant_drafter(trees), max_nodes=8)
    before = Request([1], SamplingParams()).id
    with pytest.raises(DrafterError, match=rule) as caught:
        llm.generate([pair.prompts[1]] * 2, SamplingParams(max_new_tokens=9))
    text = str(caught.value)
    assert "drafter 'constant'" in text
    assert f"request {before + 1}" in text or "requests" in text
    assert llm.model.open_sequences == 0


def test_valid_trees_are_accepted(pair: Pair) -> None:
    """Check that trees within the rules are accepted."""
    valid = [
        same_tree_for_all([3, 4, 5, 3, 3], [-1, -1, 0, 1, 2]),
        same_tree_for_all([3, 4], [-1, -1], [EVEN, None]),
        same_tree_for_all([3, 4, 5], [-1, -1, 0], [None, None, EVEN], [0.5, 0.2, 0.1]),
        same_tree_for_all([3], [-1], [None]),
    ]
    for trees in valid:
        outs = LLM(pair.target, drafter=constant_drafter(trees), max_nodes=8).generate(
            pair.prompts, SamplingParams(max_new_tokens=6)
        )
        assert [out.token_ids for out in outs] == [answer[:6] for answer in pair.answers]
