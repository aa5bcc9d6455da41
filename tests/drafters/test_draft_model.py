"""Test the draft model's tree: its input, the nodes it keeps and its calibration."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from paceline import LLM, DraftTree, Outcome, SamplingParams
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.drafters.draft_model.draft_calibration import DraftCalibration
from paceline.drafters.draft_model.draft_tree_builder import (
    DraftForwardInput,
    GuessTree,
    NodePrediction,
)
from paceline.drafters.draft_model.drafter import (
    DraftModel,
    DraftModelOptions,
    adjusted_answers,
    greedy_answers,
)
from paceline.model.cached_lm import CachedLM
from tests.support.models import make
from tests.support.shared import COUNT, Pair


def no_lookup(path: list[int], length: int) -> list[int]:
    return []


def draft_once(
    tree: GuessTree,
    answers: dict[tuple[int, ...], tuple[list[int], list[float]]],
    text: Sequence[int] = (),
    likely: DraftTree = EMPTY_TREE,
) -> DraftTree:
    """Run one draft forward pass of a fake model that predicts `answers[path]`.

    Prompt lookup finds `text` below the root; `likely` is the tree of the other sources.
    """
    question = tree.question(
        tree.newest(), lambda path, length: list(text[len(path) :][:length]), likely
    )

    def path(node: int) -> tuple[int, ...]:
        return (
            () if node < 0 else (*path(question.tree.parents[node]), question.tree.token_ids[node])
        )

    predictions = [
        answers.get(path(place - 1), ([0, 1], [0.001, 0.001])) for place in question.predicted
    ]
    tree.learn_answers(
        question, [NodePrediction(tokens[0], tokens, probs) for tokens, probs in predictions]
    )
    return question.tree


def new_tree(
    limit: int = 10, longest: int = 5, branch_threshold: float = 0.1, stop_threshold: float = 0.5
) -> GuessTree:
    return GuessTree(DraftCalibration(), limit, longest, branch_threshold, stop_threshold)


def test_likely_siblings_share_a_draft_forward() -> None:
    tree = new_tree()
    assert tree.newest() == [-1]
    assert len(draft_once(tree, {(): ([7, 8, 9], [0.5, 0.3, 0.05])})) == 0
    assert tree.finished()[0].token_ids == [7, 8]
    fed = draft_once(tree, {(7,): ([1, 2], [0.9, 0.05]), (8,): ([3, 4], [0.9, 0.1])})
    assert (fed.token_ids, fed.parents) == ([7, 8], [-1, -1])
    result, first_choice_probs = tree.finished()
    assert (result.token_ids, result.parents) == (
        [7, 1, 8, 3],
        [-1, 0, -1, 2],
    )  # likeliest paths first
    assert first_choice_probs == [0.5, 0.9, None, 0.9]


def test_looked_up_text_stays_where_the_draft_model_agrees() -> None:
    tree = new_tree()
    predictions = {
        (): ([7, 8], [0.9, 0.01]),
        (7,): ([5, 6], [0.9, 0.01]),
        (7, 5): ([2, 3], [0.9, 0.01]),
        (7, 5, 9): ([4, 3], [0.9, 0.01]),
    }
    assert draft_once(tree, predictions, [7, 5, 9, 4]).token_ids == [7, 5, 9, 4]
    assert tree.finished()[0].token_ids == [7, 5, 2]


def test_other_sources_nodes_enter_the_first_forward() -> None:
    tree = new_tree()
    predictions = {
        (): ([7, 8, 9], [0.6, 0.3, 0.01]),
        (7,): ([5, 6], [0.9, 0.01]),
        (8,): ([2, 3], [0.9, 0.01]),
        (7, 5): ([4, 3], [0.9, 0.1]),
    }
    likely = DraftTree([7, 5, 8, 9, 2], [-1, 0, -1, -1, 3])
    assert draft_once(tree, predictions, [7, 1], likely) == likely
    result, _ = tree.finished()
    paths = {
        tuple(result.token_ids[above] for above in result.path(node)) for node in range(len(result))
    }
    assert paths == {(7,), (8,), (7, 5), (8, 2), (7, 5, 4)}
    assert tree.newest() != []
    fed = draft_once(
        tree, {(7, 5, 4): ([1, 2], [0.9, 0.01]), (8, 2): ([6, 1], [0.9, 0.01])}, likely=likely
    )
    assert (
        9 not in fed.token_ids
    )  # the draft model does not predict it, and other sources' nodes are fed only once


def test_first_choice_is_always_drafted_within_limits() -> None:
    tree = new_tree(stop_threshold=0.5)
    draft_once(tree, {(): ([7, 8], [0.01, 0.01])})
    assert tree.newest() == []
    assert tree.finished()[0].token_ids == [7]
    for limit, longest in ((0, 5), (5, 0)):
        assert new_tree(limit, longest).newest() == []
    tree = new_tree(limit=3, longest=2, stop_threshold=0.0)
    while tree.newest():
        draft_once(
            tree,
            {(): ([7, 8, 9], [0.4, 0.3, 0.3]), (7,): ([1, 2, 3], [0.4, 0.3, 0.3])},
            [7, 1, 4, 4],
        )
    assert sorted(tree.finished()[0].token_ids) == [
        1,
        7,
        8,
    ]  # first choices first, then the likeliest siblings


def test_calibration_moves_from_prior_to_observed_rates() -> None:
    rates = DraftCalibration()
    before = rates.confidence(0.35)
    assert 0.35 < before < 1
    tree = DraftTree([1, 2, 3], [-1, 0, 1])
    outcome = Outcome(Request([1, 2], SamplingParams()), tree, [0], [1, 9], [0] * 4)
    for _ in range(200):
        rates.learn(outcome, [0.95, 0.35, 0.35])  # the third node was never reached
    assert rates.confidence(0.35) < 0.05 < before < 0.9 < rates.confidence(0.95) <= 1
    assert rates.confidence(0.65) == DraftCalibration().confidence(0.65)


class RecordingDraftModel(DraftModel):
    """Draft model that records each request's tokens and proposed tree."""

    notes: list[tuple[list[int], DraftTree]]

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        trees = super().propose(requests, max_nodes)
        self.notes += [
            (list(request.token_ids), tree) for request, tree in zip(requests, trees, strict=True)
        ]
        return trees


@pytest.mark.parametrize("lookup", [True, False])
def test_first_children_are_the_draft_models_argmax(pair: Pair, lookup: bool) -> None:
    """Check the first children whatever was fed in the same forward pass, and after rejections."""
    drafter = RecordingDraftModel(
        DraftModelOptions(
            stop_threshold=0.05, branch_threshold=0.01, use_prompt_lookup=lookup, budget=False
        ),
        CachedLM(pair.draft),
    )
    drafter.notes = []
    outs = LLM(pair.target, drafter=drafter, max_batch=4).generate(
        pair.prompts, SamplingParams(max_new_tokens=12)
    )
    assert [out.token_ids for out in outs] == [answer[:12] for answer in pair.answers]
    assert any(not tree.is_chain() for _, tree in drafter.notes)
    for tokens, tree in drafter.notes[::5]:
        for node, siblings in enumerate(tree.children(), start=-1):
            if siblings:
                path = tokens + path_tokens(tree, node)
                logits = pair.draft(torch.tensor([path])).logits[0, -1]
                assert int(logits.argmax()) == tree.token_ids[siblings[0]]


def path_tokens(tree: DraftTree, node: int) -> list[int]:
    return [] if node < 0 else [*path_tokens(tree, tree.parents[node]), tree.token_ids[node]]


@pytest.mark.parametrize("verification", ["reject", "follow"])
def test_greedy_and_sampled_sequences_share_a_batch(pair: Pair, verification: str) -> None:
    """Check that trees and chains can be drafted one after the other over the same rows."""
    params = [
        SamplingParams(COUNT, temperature=float(row % 2), seed=row)
        for row in range(len(pair.prompts))
    ]
    plain = LLM(pair.target).generate(pair.prompts, params)
    outs = pair.engine(f"draft_model:verification={verification}", max_batch=4).generate(
        pair.prompts, params
    )
    for row, (out, want) in enumerate(zip(outs, plain, strict=True)):
        if row % 2 == 0 or verification == "follow":
            assert out.token_ids == want.token_ids
    assert all(out.stats.drafted_tokens for out in outs)


def test_greedy_shortcut_equals_the_general_path() -> None:
    """Compare predictions from greedy rows with those of a request with a zero logit bias."""
    logits = torch.randn(2, 4, 256).bfloat16()
    trees = [DraftTree([5, 6, 7], [-1, 0, 0]), DraftTree([8], [-1])]
    questions = [DraftForwardInput(trees[0], [-1, 0, 1, 2], [0, 2, 3]), None]
    requests = [Request([1, 2], SamplingParams(logit_bias={3: 0.0})) for _ in trees]
    found = [
        greedy_answers(NodeLogits.from_padded(logits.flatten(0, 1), [4, 2]), questions),
        adjusted_answers(logits, requests, trees, questions),
    ]
    assert [len(one) for one in found[0]] == [3, 0]
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert (one.choice, list(one.likeliest)) == (other.choice, list(other.likeliest))
        assert one.probs == pytest.approx(other.probs, rel=1e-5)


def test_every_step_samples_its_draft_with_new_noise() -> None:
    """Check that a rejected draft does not return with the same noise.

    Acceptance depends on later tokens, so reusing the noise would bias the output.
    """
    drafter = DraftModel(
        DraftModelOptions(max_draft_tokens=3, verification="traverse"),
        CachedLM(make("six_words_draft")),
    )
    repeated = 0
    for seed in range(40):
        request = Request([1, 3, 4], SamplingParams(max_new_tokens=9, temperature=2.0, seed=seed))
        drafter.start(request)
        (first,) = drafter.propose([request], [3])
        (again,) = drafter.propose([request], [3])
        assert again.token_ids == first.token_ids  # same step, same noise
        request.append(first.token_ids[:1])
        (second,) = drafter.propose([request], [3])
        repeated += second.token_ids[:2] == first.token_ids[1:]
        drafter.stop(request)
    assert repeated < 20
