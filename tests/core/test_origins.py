"""Test the origins of draft tokens in trees, drafters and streams."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from paceline import DraftTree, ScriptedDrafter
from paceline.core.drafter import Outcome, TopTokens
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.core.tree_builder import TreeBuilder
from paceline.drafters import create
from paceline.drafters.shared.array_trees import ArrayTrees
from paceline.drafters.shared.draft_sources import DRAFT_HEAD, DRAFT_MODEL, RETRIEVAL
from paceline.drafters.shared.recycler import Recycler
from paceline.errors import DrafterError
from paceline.verification.tree_rules import check_trees
from tests.support.shared import Pair

P, A, D, R, Q = Origin.PROMPT, Origin.OUTPUT, Origin.DATASTORE, Origin.RECYCLED, Origin.POOL
F, M = Origin.DRAFT_HEAD, Origin.MODEL


def sequence(prompt: list[int], output: list[int]) -> Request:
    request = Request(prompt, SamplingParams(max_new_tokens=64, ignore_eos=True))
    request.append(output)
    return request


def proposed(spec: str, prompt: list[int], output: list[int], nodes: int = 16) -> DraftTree:
    """Return the tree that a drafter proposes after a prompt and an output."""
    drafter, request = (
        create(spec),
        Request(prompt, SamplingParams(max_new_tokens=64, ignore_eos=True)),
    )
    drafter.start(request)
    drafter.propose([request], [nodes])
    request.append(output)
    (tree,) = drafter.propose([request], [nodes])
    drafter.stop(request)
    check_trees(drafter, [request], [nodes], [tree], 1000)
    return tree


def test_shortened_trees_keep_origins() -> None:
    tree = DraftTree(
        [5, 6, 7, 8], [-1, 0, 0, 2], confidence=[0.9, 0.1, 0.8, 0.7], origins=[P, A, D, R]
    )
    assert tree.first(3).origins == [P, A, D]
    assert tree.first(9) is tree
    assert not len(tree.first(0))
    assert tree.best_chain().origins == [P, D, R]
    assert DraftTree([5], [-1], origins=[P]) == DraftTree(
        [5], [-1]
    )  # origins do not matter for equality


def test_a_builder_keeps_the_first_origin() -> None:
    builder = TreeBuilder(4)
    builder.add_path([5, 6], origin=M)
    builder.add_path([5, 7, 8, 9], origin=Q)
    assert builder.build().origins == [M, M, Q, Q]


@pytest.mark.parametrize(
    "origins", [[P], [P, A, D], [P, 0], [P, max(Origin) + 1], "po", [P, [1]], [P, None]]
)
def test_bad_origins_are_refused(origins: Any) -> None:
    drafter, request = ScriptedDrafter([]), sequence([1, 2], [])
    with pytest.raises((DrafterError, TypeError), match=r"origins|unhashable"):
        check_trees(drafter, [request], [4], [DraftTree([5, 6], [-1, 0], origins=origins)], 10)
    check_trees(drafter, [request], [4], [DraftTree([5, 6], [-1, 0], origins=[Q, int(M)])], 10)


@pytest.mark.parametrize(
    "spec",
    [
        "prompt_lookup:max_draft_tokens=4,max_frequent_tokens=0",
        "sssd:max_nodes=4",
        "sssd:max_nodes=4,fusion=paper",
    ],
)
def test_prompt_and_output_have_different_origins(spec: str) -> None:
    rest = list(range(100, 130))
    (in_prompt,) = {*(proposed(spec, [1, 2, 3, 4, 5, 6, *rest], [1, 2, 3]).origins or [])}
    assert in_prompt == P
    (in_output,) = {*(proposed(spec, rest, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]).origins or [])}
    assert in_output == A


def test_a_draft_may_continue_from_prompt_to_output() -> None:
    tree = proposed(
        "prompt_lookup:max_draft_tokens=4,max_frequent_tokens=0", [1, 2, 3, 4], [5, 6, 1, 2]
    )
    assert (tree.token_ids, tree.origins) == ([3, 4, 5, 6], [P, P, A, A])


def test_the_most_confident_source_gives_the_origin() -> None:
    request = Request([1], SamplingParams(max_new_tokens=2))
    recycler = Recycler(1, rows=64)
    ids, probs = np.zeros((1, 8), np.int64), np.zeros((1, 8), np.float32)
    ids[0, :2], probs[0, :2] = [7, 8], [0.5, 0.3]
    recycler.observe(
        [
            Outcome(
                Request([1, 7], SamplingParams()), EMPTY_TREE, [], [7], [7], TopTokens(ids, probs)
            )
        ]
    )

    def tree(tokens: list[int], chance: list[float], origin: list[Origin]) -> DraftTree:
        return DraftTree(tokens, [-1] * len(tokens), None, chance, origins=origin)

    def origins(drafted: DraftTree, head_draft: DraftTree, modelled: DraftTree) -> dict[int, int]:
        given = {RETRIEVAL: drafted, DRAFT_HEAD: head_draft, DRAFT_MODEL: modelled}
        (tree,) = recycler.draft(
            [request], [8], 0.0, {source: ArrayTrees.of([each]) for source, each in given.items()}
        )
        return dict(zip(tree.token_ids, tree.origins or (), strict=True))

    empty = tree([], [], [])
    assert origins(empty, empty, empty) == {7: R, 8: R}
    assert origins(tree([7, 9], [0.9, 0.2], [P, D]), empty, empty) == {7: P, 8: R, 9: D}
    assert origins(tree([7], [0.1], [P]), empty, empty) == {7: R, 8: R}
    assert origins(empty, empty, tree([8, 6], [1.0, 0.4], [M, M])) == {7: R, 8: M, 6: M}
    assert origins(empty, tree([8, 6], [1.0, 0.4], [F, F]), empty) == {7: R, 8: F, 6: F}
    assert origins(empty, tree([8, 6], [0.4, 0.9], [F, F]), tree([8, 6], [0.9, 0.1], [M, M])) == {
        7: R,
        8: M,
        6: F,
    }


WORDS = {
    "draft_model": {"model"}, "specdec_pp:threshold=0.3": {"model"}, "ouroboros": {"model", "pool"},
    "lookahead:budget=false": {"window", "pool"}, "jacobi": {"window"}, "pia": {"prompt", "pool"},
    "token_recycling:budget=false": {"recycled"}, "prompt_lookup:budget=false": {"prompt",
    "output"},
    "sssd:budget=false": {"prompt", "output", "pool"},
    "sssd:budget=false,answer_cache_tokens=0": {"prompt", "output"},
    "auto:budget=false,max_nodes=16": {"prompt", "output", "pool", "recycled", "draft_head"},
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_streams_state_the_origins_of_tokens(pair: Pair, tokenizer: Any, name: str) -> None:
    llm, seen = pair.engine(name, tokenizer=tokenizer), set[str]()
    for prompt in pair.prompts[5:8]:
        before, step = 0, 0
        for chunk in llm.stream(prompt, SamplingParams(30, stop=("zz",))):
            assert chunk.outcome is not None
            tree, step = chunk.outcome.tree, step + 1
            assert len(tree) == 0 or (tree.origins is not None and len(tree.origins) == len(tree))
            assert [origin != "target" for origin in chunk.origins] == chunk.accepted
            assert len(chunk.marks) == len(chunk.pieces)
            assert all(
                flag == (mark.origin != Origin.TARGET)
                for (_, flag), mark in zip(chunk.pieces, chunk.marks, strict=True)
            )
            assert (chunk.step, chunk.forwards > before) == (step, True)
            before = chunk.forwards
            seen |= set(chunk.origins) | {Origin(one).word for one in tree.origins or ()}
        assert chunk.completion is not None
        assert chunk.forwards == chunk.completion.stats.target_forwards
    assert seen - {"target"} <= WORDS[name]
    assert len(seen) > 1


def test_tokens_of_drafters_without_origins_are_drafts(pair: Pair, tokenizer: Any) -> None:
    answer = pair.answers[0]

    def right(requests: Sequence[Request], limits: list[int]) -> list[DraftTree]:
        return [
            DraftTree.chain(answer[len(request.output_ids) :][: min(2, limit)])
            for request, limit in zip(requests, limits, strict=True)
        ]

    llm = pair.engine("none", tokenizer=tokenizer)
    llm.change_drafter(ScriptedDrafter(right))
    chunks = list(llm.stream(pair.prompts[0], SamplingParams(8)))
    assert chunks[1].origins == ["draft", "draft", "target"]


def test_the_web_page_names_every_origin() -> None:
    script = (files("paceline") / "serve/page/origins.js").read_text()
    named = re.findall(r"^  (\w+): \[", script, re.MULTILINE)
    assert sorted(named) == sorted(origin.word for origin in Origin)
